/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Asks for credentials: a command (docs.aws.amazon.com/sdkref/latest/guide/
 * feature-process-credentials.html), STS (AssumeRoleWithWebIdentity), the container's agent
 * (.../feature-container-credentials.html), the instance (IMDSv2).
 */
#include "remote/creds_internal.h"

#include "base/buf.h"
#include "base/bytes.h"
#include "base/checked.h"
#include "base/cleanup.h"
#include "base/clock.h"
#include "base/err.h"
#include "base/io.h"
#include "base/json.h"
#include "remote/http.h"
#include "remote/store_internal.h"
#include "remote/url.h"
#include "remote/xml.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>
#include <sys/wait.h>

enum {
	ANSWER_MAX = 64 << 10,
	TOKEN_MAX = 256 << 10, /* io_read_file wants room */
	COMMAND_S = 60,	       /* it may ask somebody for a second factor */
	FIELDS = 2,
};

static void wipe_buf(struct buf *b)
{
	if (b->data)
		explicit_bzero(b->data, b->cap);
	buf_release(b);
}

int creds_fixed(struct creds_source *s, struct creds_got *ret, struct ckpt_err *e)
{
	struct creds_got got = { 0 };
	int rc = creds_copy(&s->fixed, &got.key, e);

	if (!rc)
		*ret = got;
	return rc;
}

/* ---- JSON ---- */

/* token: what the member is called that has the session's token. `from` names who answered. */
static int take_json(struct buf *b, const char *token, const char *from, struct creds_got *ret,
		     struct ckpt_err *e)
{
	struct jdoc d = { 0 };
	struct ckpt_err why = { 0 }; /* it might quote a secret */
	struct creds_got got = { 0 };
	const char *expires, *access, *secret;
	int rc = 0;

	if (!b->len || jdoc_parse(&d, b->data, b->len, JDOC_DUPLICATES | JDOC_BIG, &why))
		return why.code == ENOMEM ? err_nomem(e)
					  : err_set(e, EACCES, "%s did not answer with JSON", from);
	access = jval_str(jval_get(jdoc_root(&d), "AccessKeyId"));
	secret = jval_str(jval_get(jdoc_root(&d), "SecretAccessKey"));
	token = jval_str(jval_get(jdoc_root(&d), token));
	expires = jval_str(jval_get(jdoc_root(&d), "Expiration"));
	if (!access || !*access || !secret || !*secret)
		rc = err_set(e, EACCES, "%s answered without an AccessKeyId and a SecretAccessKey",
			     from);
	else if (expires && !object_time_ns(expires))
		rc = err_set(e, EACCES, "%s answered with an Expiration that is not a time", from);
	else {
		/* creds_copy does not write to them. */
		rc = creds_copy(&(struct creds_key){ strdupa(access), strdupa(secret),
						     token ? strdupa(token) : NULL },
				&got.key, e);
		got.expires = expires ? (time_t)(object_time_ns(expires) / CLOCK_SECOND) : 0;
	}
	jdoc_release(&d);
	if (!rc)
		*ret = got;
	return rc;
}

/* ---- a command ---- */

/* Reads what the command writes until it ends it, or COMMAND_S have passed. */
static int read_all(int fd, struct buf *b)
{
	uint64_t end = clock_ns() + COMMAND_S * CLOCK_SECOND;

	for (;;) {
		struct pollfd p = { .fd = fd, .events = POLLIN };
		uint64_t now = clock_ns();
		char some[4096];
		ssize_t n;

		if (now >= end)
			return -ETIMEDOUT;
		if (poll(&p, 1, (int)((end - now) / CLOCK_MS) + 1) <= 0)
			continue;
		n = read(fd, some, sizeof(some));
		if (n > 0)
			buf_add(b, some, (size_t)n);
		explicit_bzero(some, sizeof(some));
		if (n < 0 && errno != EINTR)
			return -errno;
		if (!n || b->err)
			return -b->err;
	}
}

int creds_process(struct creds_source *s, struct creds_got *ret, struct ckpt_err *e)
{
	static const char from[] = "the command of credential_process";
	struct buf b CLEANUP(wipe_buf) = BUF_INIT(ANSWER_MAX);
	char sh[] = "/bin/sh", c[] = "-c";
	char *argv[] = { sh, c, s->command, NULL };
	posix_spawn_file_actions_t actions;
	posix_spawnattr_t attr;
	sigset_t ignored;
	autoclose int in = -1;
	int fds[2], rc, status = 0;
	pid_t pid;

	if (pipe2(fds, O_CLOEXEC))
		return err_sys(e, errno, "run %s", from);
	in = fds[0];
	rc = posix_spawnattr_init(&attr);
	if (rc) {
		(void)close(fds[1]);
		return err_sys(e, rc, "run %s", from);
	}
	(void)sigemptyset(&ignored); /* here */
	(void)sigaddset(&ignored, SIGPIPE);
	(void)sigaddset(&ignored, SIGXFSZ);
	(void)posix_spawnattr_setsigdefault(&attr, &ignored);
	(void)posix_spawnattr_setflags(&attr, POSIX_SPAWN_SETSIGDEF);
	rc = posix_spawn_file_actions_init(&actions);
	if (!rc) {
		rc = posix_spawn_file_actions_addopen(&actions, 0, "/dev/null", O_RDONLY, 0);
		if (!rc)
			rc = posix_spawn_file_actions_adddup2(&actions, fds[1], 1);
		if (!rc)
			rc = posix_spawn(&pid, sh, &actions, &attr, argv, environ);
		(void)posix_spawn_file_actions_destroy(&actions);
	}
	(void)posix_spawnattr_destroy(&attr);
	(void)close(fds[1]);
	if (rc)
		return err_sys(e, rc, "run %s", from);
	rc = read_all(in, &b);
	/* It has said all it will: what it does after that is not waited for. */
	for (int ms = 0; !rc && waitpid(pid, &status, WNOHANG) != pid; ms += 10) {
		if (ms >= 5000)
			rc = -ETIMEDOUT;
		(void)poll(NULL, 0, 10);
	}
	if (rc) {
		(void)kill(pid, SIGKILL);
		while (waitpid(pid, &status, 0) < 0 && errno == EINTR)
			;
	}
	if (rc)
		return err_sys(e, -rc, "read from %s", from);
	if (!WIFEXITED(status) || WEXITSTATUS(status))
		return err_set(e, EACCES, "%s ended with status %d", from,
			       WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status));
	return take_json(&b, "SessionToken", from, ret, e);
}

/* ---- requests ---- */

struct creds_request {
	const char *method, *url, *body;
	const char *fields[FIELDS][2]; /* NULL: no more */
	bool direct;
};

static int make(void *arg, uint64_t from, struct http_message *m, struct ckpt_err *e)
{
	const struct creds_request *r = arg;

	(void)from;
	(void)e;
	m->method = r->method;
	m->direct = r->direct;
	buf_str(&m->url, r->url);
	if (r->body)
		buf_str(&m->body, r->body);
	for (int i = 0; i < FIELDS && r->fields[i][0]; i++)
		http_add_field(m, r->fields[i][0], r->fields[i][1]);
	return 0;
}

struct sts_answer {
	char *v[4]; /* access, secret, token, expiration */
	char code[64];
	bool nomem;
};

static int on_sts(void *arg, const char *path, const char *text, size_t len, struct ckpt_err *e)
{
	static const char *const names[] = { "Credentials/AccessKeyId",
					     "Credentials/SecretAccessKey",
					     "Credentials/SessionToken", "Credentials/Expiration" };
	struct sts_answer *a = arg;

	(void)e;
	for (size_t i = 0; i < ARRAY_LEN(names); i++)
		if (bytes_end(path, strlen(path), names[i]) && !a->v[i]) {
			a->v[i] = strndup(text, len);
			a->nomem |= !a->v[i];
		}
	if (bytes_end(path, strlen(path), "Error/Code"))
		(void)snprintf(a->code, sizeof(a->code), "%s", text);
	return 0;
}

static void release_sts(struct sts_answer *a)
{
	for (size_t i = 0; i < ARRAY_LEN(a->v); i++)
		creds_wipe(a->v[i]);
}

static enum http_verdict judge(void *arg, uint64_t from, const struct http_answer *a,
			       struct ckpt_err *e)
{
	struct sts_answer s CLEANUP(release_sts) = { 0 };
	struct ckpt_err ignored = { 0 };
	enum http_verdict v;

	(void)arg;
	(void)from;
	if (a->status == 200)
		return HTTP_TAKE;
	if (a->error_len && *a->error == '<')
		(void)xml_parse(a->error, a->error_len, on_sts, &s, &ignored);
	v = store_refuse(a, s.code, NULL, e);
	if (v == HTTP_FAIL)
		e->code = EACCES;
	return v;
}

static int exchange(struct creds_source *s, struct creds_request *r, const char *from,
		    unsigned retry_ms, struct buf *body, struct ckpt_err *e)
{
	static const struct http_ops ops = { .make = make, .judge = judge };

	return http_exchange(s->net, &ops, r,
			     &(struct http_how){ .what = from,
						 .len = UINT64_MAX,
						 .urgent = true,
						 .retry_ms = retry_ms,
						 .connect_ms = 1000,
						 .stall_ms = 5000 },
			     body, e);
}

/* ---- STS ---- */

/* The file's contents without white space around them. */
static int read_token(const char *path, struct buf *b, struct ckpt_err *e)
{
	int rc = io_read_file(path, b, e);

	if (rc)
		return rc;
	while (b->len && strchr(" \t\r\n", b->data[b->len - 1]))
		b->data[--b->len] = 0;
	return b->len ? 0 : err_set(e, EACCES, "'%s' is empty, and should be a token", path);
}

int creds_web_identity(struct creds_source *s, struct creds_got *ret, struct ckpt_err *e)
{
	static const char from[] = "the service STS";
	struct buf token CLEANUP(wipe_buf) = BUF_INIT(TOKEN_MAX);
	struct buf body CLEANUP(wipe_buf) = BUF_INIT(4 * TOKEN_MAX);
	struct buf answer CLEANUP(wipe_buf) = BUF_INIT(ANSWER_MAX);
	struct buf url CLEANUP(buf_release) = BUF_INIT(4096);
	struct sts_answer a CLEANUP(release_sts) = { 0 };
	const char *endpoint = creds_env("AWS_ENDPOINT_URL_STS"), *region = creds_env("AWS_REGION");
	struct creds_got got = { 0 };
	struct creds_request r = { .method = "POST" };
	int rc = read_token(s->token_file, &token, e);

	if (rc)
		return rc;
	if (!region)
		region = creds_env("AWS_DEFAULT_REGION");
	if (!region)
		region = s->region;
	if (endpoint)
		buf_str(&url, endpoint);
	else
		buf_printf(&url, "https://sts.%s%samazonaws.com%s/", region ? region : "",
			   region ? "." : "", region && !strncmp(region, "cn-", 3) ? ".cn" : "");
	buf_str(&body, "Action=AssumeRoleWithWebIdentity&Version=2011-06-15&RoleArn=");
	url_encode(&body, s->role, strlen(s->role), false);
	buf_str(&body, "&RoleSessionName=");
	url_encode(&body, s->session, strlen(s->session), false);
	buf_str(&body, "&WebIdentityToken=");
	url_encode(&body, token.data, token.len, false);
	if (url.err || body.err)
		return err_set(e, url.err ? url.err : body.err, "the request to STS is too long");
	r.url = url.data;
	r.body = body.data;
	r.fields[0][0] = "Content-Type";
	r.fields[0][1] = "application/x-www-form-urlencoded";
	rc = exchange(s, &r, from, 10000, &answer, e);
	if (rc)
		return rc;
	rc = xml_parse(answer.data ? answer.data : "", answer.len, on_sts, &a, e);
	if (rc)
		return err_wrap(e, "%s", from);
	if (a.nomem)
		return err_nomem(e);
	if (!a.v[0] || !*a.v[0] || !a.v[1] || !*a.v[1] || !a.v[3] || !object_time_ns(a.v[3]))
		return err_set(e, EACCES, "%s answered without credentials", from);
	rc = creds_copy(&(struct creds_key){ a.v[0], a.v[1], a.v[2] }, &got.key, e);
	got.expires = (time_t)(object_time_ns(a.v[3]) / CLOCK_SECOND);
	if (!rc)
		*ret = got;
	return rc;
}

/* ---- the container's agent ---- */

/* Without TLS it has to be this machine, or the addresses of ECS and EKS. */
static bool is_agent(const char *url)
{
	static const char *const hosts[] = { "localhost",     "127.0.0.1",	"[::1]",
					     "169.254.170.2", "169.254.170.23", "[fd00:ec2::23]" };
	struct url u = { 0 };
	struct ckpt_err ignored = { 0 };
	bool ok;

	if (url_parse(url, &u, &ignored))
		return false;
	ok = u.secure;
	for (size_t i = 0; !ok && i < ARRAY_LEN(hosts); i++) {
		size_t n = strlen(hosts[i]);

		ok = !strncmp(u.host, hosts[i], n) && (!u.host[n] || u.host[n] == ':');
	}
	url_release(&u);
	return ok;
}

int creds_container(struct creds_source *s, struct creds_got *ret, struct ckpt_err *e)
{
	static const char from[] = "the container's credentials";
	struct buf token CLEANUP(wipe_buf) = BUF_INIT(TOKEN_MAX);
	struct buf answer CLEANUP(wipe_buf) = BUF_INIT(ANSWER_MAX);
	struct creds_request r = { .url = s->url, .direct = true };
	int rc = 0;

	if (!is_agent(s->url))
		return err_set(e, EINVAL,
			       "AWS_CONTAINER_CREDENTIALS_FULL_URI is neither an https address nor "
			       "on this machine, which is refused");
	if (s->bearer_file)
		rc = read_token(s->bearer_file, &token, e);
	else if (s->bearer)
		buf_str(&token, s->bearer);
	if (rc)
		return rc;
	if (token.len) {
		r.fields[0][0] = "Authorization";
		r.fields[0][1] = token.data;
	}
	rc = exchange(s, &r, from, 5000, &answer, e);
	return rc ? rc : take_json(&answer, "Token", from, ret, e);
}

/* ---- the instance ---- */

int creds_instance(struct creds_source *s, struct creds_got *ret, struct ckpt_err *e)
{
	static const char from[] = "the instance's metadata";
	static const char path[] = "/latest/meta-data/iam/security-credentials/";
	const char *host = creds_env("AWS_EC2_METADATA_SERVICE_ENDPOINT");
	struct buf token CLEANUP(wipe_buf) = BUF_INIT(4096);
	struct buf answer CLEANUP(wipe_buf) = BUF_INIT(ANSWER_MAX);
	struct buf url CLEANUP(buf_release) = BUF_INIT(4096),
		       role CLEANUP(buf_release) = BUF_INIT(512);
	struct creds_request r = { .method = "PUT", .direct = true };
	struct ckpt_err why = { 0 };
	size_t n = host ? strlen(host) : 0;
	int rc;

	if (!host)
		host = "http://169.254.169.254";
	else if (host[n - 1] == '/')
		n--;
	n = n ? n : strlen(host);
	buf_printf(&url, "%.*s/latest/api/token", (int)n, host);
	r.url = url.data ? url.data : "";
	r.fields[0][0] = "X-aws-ec2-metadata-token-ttl-seconds";
	r.fields[0][1] = "21600";
	rc = exchange(s, &r, from, 1000, &token, &why);
	if (rc)
		return err_set(e, EACCES,
			       "no credentials were found: not in the environment, in the files of "
			       "AWS, of a container or of an instance (%s); public data can be "
			       "read with the option anonymous",
			       why.msg);
	r = (struct creds_request){ .direct = true };
	r.fields[0][0] = "X-aws-ec2-metadata-token";
	r.fields[0][1] = token.data ? token.data : "";
	buf_restart(&url);
	buf_printf(&url, "%.*s%s", (int)n, host, path);
	r.url = url.data ? url.data : "";
	rc = exchange(s, &r, from, 5000, &role, e);
	if (rc)
		return rc;
	role.len = role.data ? strcspn(role.data, "\r\n") : 0; /* the first */
	if (!role.len)
		return err_set(e, EACCES, "the instance has no role");
	url_encode(&url, role.data, role.len, false);
	r.url = url.data ? url.data : "";
	if (url.err)
		return err_nomem(e);
	rc = exchange(s, &r, from, 5000, &answer, e);
	return rc ? rc : take_json(&answer, "Token", from, ret, e);
}
