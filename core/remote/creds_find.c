/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The order is that of AWS's SDKs: docs.aws.amazon.com/sdkref/latest/guide/
 * standardized-credentials.html; the files: .../file-format.html.
 */
#include "remote/creds_internal.h"

#include "base/buf.h"
#include "base/bytes.h"
#include "base/checked.h"
#include "base/cleanup.h"
#include "base/err.h"
#include "base/io.h"
#include "base/text.h"

#include <stdio.h>
#include <string.h>
#include <strings.h>

enum { FILE_MAX = 1 << 20 };

/* The keys of a profile that matter, in the order of their names below. */
enum {
	ACCESS,
	SECRET,
	TOKEN,
	PROCESS,
	REGION,
	ENDPOINT,
	ROLE,
	WEB_TOKEN,
	SESSION,
	SOURCE,
	SSO,
	SSO_SESSION,
	N_KEYS
};
static const char *const key_names[N_KEYS] = {
	"aws_access_key_id",
	"aws_secret_access_key",
	"aws_session_token",
	"credential_process",
	"region",
	"endpoint_url",
	"role_arn",
	"web_identity_token_file",
	"role_session_name",
	"source_profile",
	"sso_start_url",
	"sso_session",
};

struct profile {
	char *v[N_KEYS];
	bool found;
};

static void release_profile(struct profile *p)
{
	for (int i = 0; i < N_KEYS; i++)
		creds_wipe(p->v[i]);
}

static const char *trim(const char *s, size_t *n)
{
	while (*n && (*s == ' ' || *s == '\t')) {
		s++;
		--*n;
	}
	while (*n && (s[*n - 1] == ' ' || s[*n - 1] == '\t' || s[*n - 1] == '\r'))
		--*n;
	return s;
}

/* Is this the heading of the profile: [NAME], or in the config file [profile NAME]? */
static bool is_heading(const char *s, size_t n, const char *name, bool is_config)
{
	if (n < 2 || s[0] != '[' || s[n - 1] != ']')
		return false;
	s++;
	n -= 2;
	s = trim(s, &n);
	if (is_config && n > 8 && !memcmp(s, "profile", 7) && (s[7] == ' ' || s[7] == '\t')) {
		s += 8;
		n -= 8;
		s = trim(s, &n);
	} else if (is_config && strcmp(name, "default") != 0)
		return false;
	return bytes_are(s, n, name);
}

/*
 * Takes the keys of the profile that are not set yet. Nested settings are indented and do not
 * concern us.
 */
static int read_profile(const char *path, const char *name, bool is_config, struct profile *p,
			struct ckpt_err *e)
{
	struct buf b CLEANUP(buf_release) = BUF_INIT(FILE_MAX);
	struct ckpt_err why = { 0 };
	bool inside = false;
	int rc = io_read_file(path, &b, &why);

	if (rc == -ENOENT || rc == -ENOTDIR)
		return 0;
	if (rc) {
		*e = why;
		return rc;
	}
	for (const char *line = b.data, *end; line && *line; line = *end ? end + 1 : end) {
		size_t n, k;
		const char *s, *eq;

		end = line + strcspn(line, "\n");
		n = (size_t)(end - line);
		s = trim(line, &n);
		if (!n || *s == '#' || *s == ';')
			continue;
		if (*s == '[') {
			inside = is_heading(s, n, name, is_config);
			p->found |= inside;
			continue;
		}
		eq = memchr(s, '=', n);
		if (!inside || !eq || *line == ' ' || *line == '\t')
			continue;
		k = (size_t)(eq - s);
		n -= k + 1;
		s = trim(s, &k);
		eq = trim(eq + 1, &n);
		for (int i = 0; i < N_KEYS; i++)
			if (bytes_are(s, k, key_names[i]) && n && !p->v[i] &&
			    !(p->v[i] = strndup(eq, n)))
				rc = err_nomem(e);
	}
	if (b.data)
		explicit_bzero(b.data, b.len);
	return rc;
}

static int read_profiles(const char *name, struct profile *p, struct ckpt_err *e)
{
	static const struct {
		const char *variable, *name;
		bool is_config;
	} files[] = { { "AWS_SHARED_CREDENTIALS_FILE", "credentials", false },
		      { "AWS_CONFIG_FILE", "config", true } };

	for (size_t i = 0; i < ARRAY_LEN(files); i++) {
		const char *given = creds_env(files[i].variable), *home = creds_env("HOME");
		autofree char *path = NULL;
		int rc;

		if (given)
			path = strdup(given);
		else if (!home)
			continue;
		else
			path = text_format("%s/.aws/%s", home, files[i].name);
		if (!path)
			return err_nomem(e);
		rc = read_profile(path, name, files[i].is_config, p, e);
		if (rc)
			return rc;
	}
	return 0;
}

static bool set(char **to, const char *s)
{
	*to = s ? strdup(s) : NULL;
	return *to || !s;
}

static int use_fixed(struct creds_source *s, const char *access, const char *secret,
		     const char *token, struct ckpt_err *e)
{
	s->get = creds_fixed;
	return set(&s->fixed.access, access) && set(&s->fixed.secret, secret) &&
			       set(&s->fixed.token, token)
		       ? 0
		       : err_nomem(e);
}

static int use_web_identity(struct creds_source *s, const char *role, const char *file,
			    const char *session, struct ckpt_err *e)
{
	s->get = creds_web_identity;
	s->can_renew = true;
	return set(&s->role, role) && set(&s->token_file, file) &&
			       set(&s->session, session ? session : "ckptfs")
		       ? 0
		       : err_nomem(e);
}

/* Whether a profile has credentials: 1, 0 or an error. */
static int use_profile(struct creds_source *s, const char *name, const struct profile *p,
		       struct ckpt_err *e)
{
	int rc;

	if (p->v[ROLE] && p->v[WEB_TOKEN]) {
		rc = use_web_identity(s, p->v[ROLE], p->v[WEB_TOKEN], p->v[SESSION], e);
		return rc ? rc : 1;
	}
	if (p->v[ROLE])
		return err_set(e, EINVAL,
			       "profile '%s' has a role_arn, which is supported only with a "
			       "web_identity_token_file: use credential_process = aws configure "
			       "export-credentials --profile %s",
			       name, name);
	if (p->v[ACCESS] && p->v[SECRET]) {
		rc = use_fixed(s, p->v[ACCESS], p->v[SECRET], p->v[TOKEN], e);
		return rc ? rc : 1;
	}
	if (p->v[PROCESS]) {
		s->get = creds_process;
		s->can_renew = true;
		return set(&s->command, p->v[PROCESS]) ? 1 : err_nomem(e);
	}
	if (p->v[SSO] || p->v[SSO_SESSION])
		return err_set(
			e, EINVAL,
			"profile '%s' uses SSO, which is not supported: in another profile, use "
			"credential_process = aws configure export-credentials --profile %s",
			name, name);
	return 0;
}

static int use_container(struct creds_source *s, struct ckpt_err *e)
{
	const char *relative = creds_env("AWS_CONTAINER_CREDENTIALS_RELATIVE_URI");
	const char *full = creds_env("AWS_CONTAINER_CREDENTIALS_FULL_URI");

	s->get = creds_container;
	s->can_renew = true;
	if (relative)
		s->url = text_format("http://169.254.170.2%s", relative);
	else if (full)
		s->url = strdup(full);
	if (!s->url || !set(&s->bearer, creds_env("AWS_CONTAINER_AUTHORIZATION_TOKEN")) ||
	    !set(&s->bearer_file, creds_env("AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE")))
		return err_nomem(e);
	return 0;
}

int creds_find(struct creds_source *s, const char *profile, bool anonymous, struct ckpt_err *e)
{
	const char *name = profile ? profile : creds_env("AWS_PROFILE"), *off;
	struct profile p CLEANUP(release_profile) = { 0 };
	int rc = read_profiles(name ? name : "default", &p, e);

	if (rc)
		return rc;
	if (profile && !p.found)
		return err_set(e, EINVAL, "there is no profile '%s' in the files of AWS", profile);
	if (!set(&s->region, p.v[REGION]) || !set(&s->endpoint, p.v[ENDPOINT]))
		return err_nomem(e);
	if (anonymous)
		return 0;
	if (!profile && creds_env("AWS_ACCESS_KEY_ID") && creds_env("AWS_SECRET_ACCESS_KEY"))
		return use_fixed(s, creds_env("AWS_ACCESS_KEY_ID"),
				 creds_env("AWS_SECRET_ACCESS_KEY"), creds_env("AWS_SESSION_TOKEN"),
				 e);
	rc = use_profile(s, name ? name : "default", &p, e);
	if (rc)
		return rc < 0 ? rc : 0;
	if (creds_env("AWS_WEB_IDENTITY_TOKEN_FILE") && creds_env("AWS_ROLE_ARN"))
		return use_web_identity(s, creds_env("AWS_ROLE_ARN"),
					creds_env("AWS_WEB_IDENTITY_TOKEN_FILE"),
					creds_env("AWS_ROLE_SESSION_NAME"), e);
	if (creds_env("AWS_CONTAINER_CREDENTIALS_RELATIVE_URI") ||
	    creds_env("AWS_CONTAINER_CREDENTIALS_FULL_URI"))
		return use_container(s, e);
	off = creds_env("AWS_EC2_METADATA_DISABLED");
	if (off && !strcasecmp(off, "true"))
		return err_set(e, EACCES,
			       "no credentials were found in the environment or in the files of "
			       "AWS; public data can be read with the option anonymous");
	s->get = creds_instance;
	s->can_renew = true;
	return 0;
}

void creds_source_release(struct creds_source *s)
{
	creds_key_release(&s->fixed);
	free(s->region);
	free(s->endpoint);
	creds_wipe(s->command);
	free(s->role);
	free(s->token_file);
	free(s->session);
	creds_wipe(s->url);
	creds_wipe(s->bearer);
	free(s->bearer_file);
	*s = (struct creds_source){ 0 };
}
