/* SPDX-License-Identifier: Apache-2.0 */
/* Credentials: which source is chosen, what it is asked, and that no message contains a secret. */
#include "dir_util.h"
#include "fault.h"
#include "remote_util.h"
#include "suites.h"

#include "base/checked.h"
#include "base/clock.h"
#include "base/err.h"
#include "remote/creds_internal.h"

#include <sys/stat.h>

static struct net *net;
static struct creds *creds;
static unsigned port;

static void forget_environment(void)
{
	static const char *const names[] = {
		"AWS_ACCESS_KEY_ID",
		"AWS_SECRET_ACCESS_KEY",
		"AWS_SESSION_TOKEN",
		"AWS_PROFILE",
		"AWS_SHARED_CREDENTIALS_FILE",
		"AWS_CONFIG_FILE",
		"AWS_WEB_IDENTITY_TOKEN_FILE",
		"AWS_ROLE_ARN",
		"AWS_ROLE_SESSION_NAME",
		"AWS_REGION",
		"AWS_DEFAULT_REGION",
		"AWS_CONTAINER_CREDENTIALS_RELATIVE_URI",
		"AWS_CONTAINER_CREDENTIALS_FULL_URI",
		"AWS_CONTAINER_AUTHORIZATION_TOKEN",
		"AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE",
		"AWS_ENDPOINT_URL_STS",
		"AWS_EC2_METADATA_SERVICE_ENDPOINT",
	};
	struct ckpt_err e = { 0 };

	dir_setup();
	for (size_t i = 0; i < ARRAY_LEN(names); i++)
		(void)unsetenv(names[i]);
	(void)setenv("HOME", dir, 1);
	(void)setenv("AWS_EC2_METADATA_DISABLED", "true", 1);
	ck_assert_int_eq(net_new(&(struct net_options){ .retry_ms = 500 }, &net, &e), 0);
}

static void stop(void)
{
	net_free(net);
	dir_teardown();
}

/* A file in the test's directory; returns its path. */
static const char *file(const char *name, const char *text)
{
	static char path[8192];
	FILE *f;

	(void)snprintf(path, sizeof(path), "%s/%s", dir, name);
	f = fopen(path, "w");
	ck_assert_ptr_nonnull(f);
	(void)fputs(text, f);
	(void)fclose(f);
	return path;
}

static void expect(const char *profile, const char *access, const char *secret, const char *token)
{
	struct ckpt_err e = { 0 };
	struct creds_key k = { 0 };

	ck_assert_msg(!creds_open(net, profile, false, &creds, &e), "%s", e.msg);
	ck_assert_int_eq(creds_get(creds, &k, &e), 0);
	ck_assert_str_eq(k.access, access);
	ck_assert_str_eq(k.secret, secret);
	ck_assert_pstr_eq(k.token, token);
	creds_key_release(&k);
}

static void expect_error(const char *profile, int rc, const char *says)
{
	struct ckpt_err e = { 0 };

	ck_assert_int_eq(creds_open(net, profile, false, &creds, &e), rc);
	ck_assert_msg(strstr(e.msg, says) != NULL, "%s", e.msg);
	ck_assert_ptr_null(strstr(e.msg, "SECRET"));
}

static const char config[] = "[default]\nregion = eu-1\n"
			     "s3 =\n  region = nested\n"
			     "[profile  two]\r\nregion=eu-2\r\nendpoint_url = http://h:1\r\n"
			     "aws_access_key_id = A2\r\naws_secret_access_key = SECRET/=2\r\n"
			     "[profile sso]\nsso_session = x\n"
			     "[profile chained]\nrole_arn = r\nsource_profile = default\n"
			     "[two]\nregion = not.this\n";

START_TEST(the_environment_comes_first_unless_a_profile_is_named)
{
	(void)setenv("AWS_CONFIG_FILE", file("config", config), 1);
	(void)setenv("AWS_SHARED_CREDENTIALS_FILE",
		     file("credentials", "# a comment\n[default]\naws_access_key_id = A1\n"
					 "aws_secret_access_key=SECRET1\naws_session_token = T1\n"),
		     1);
	(void)setenv("AWS_ACCESS_KEY_ID", "AE", 1);
	(void)setenv("AWS_SECRET_ACCESS_KEY", "SECRETE", 1);
	expect(NULL, "AE", "SECRETE", NULL);
	ck_assert_str_eq(creds_region(creds), "eu-1");
	ck_assert_ptr_null(creds_endpoint(creds));
	ck_assert(!creds_refused(creds, "AE"));
	creds_free(creds);
	expect("two", "A2", "SECRET/=2", NULL);
	ck_assert_str_eq(creds_region(creds), "eu-2");
	ck_assert_str_eq(creds_endpoint(creds), "http://h:1");
	creds_free(creds);
	(void)unsetenv("AWS_ACCESS_KEY_ID");
	expect(NULL, "A1", "SECRET1", "T1");
	creds_free(creds);
	(void)setenv("AWS_PROFILE", "two", 1);
	expect(NULL, "A2", "SECRET/=2", NULL);
	creds_free(creds);
	expect_error("three", -EINVAL, "there is no profile 'three'");
	expect_error("sso", -EINVAL, "SSO, which is not supported");
	expect_error("chained", -EINVAL, "export-credentials");
}
END_TEST

/* ---- files ---- */

#define KEYS "aws_access_key_id=A\naws_secret_access_key=SECRET\n"

static const struct {
	const char *config, *credentials;
	const char *access, *region; /* access: NULL: there are no keys */
} files[] = {
	{ "[default]\n" KEYS, "", "A", NULL },
	{ "", "[default]\n" KEYS, "A", NULL },
	{ "[default]\nregion=r\n" KEYS, "[default]\naws_access_key_id=B\n", "B", "r" },
	{ "[ \tdefault\t ]\r\nregion = r\r\n" KEYS, "", "A", "r" },
	{ "[profile default]\nregion=r\n" KEYS, "", "A", "r" },
	{ "[profile\tdefault]\nregion=r\n" KEYS, "", "A", "r" },
	{ "[profiledefault]\nregion=r\n" KEYS, "", NULL, NULL },
	{ "[profile ]\n" KEYS, "", NULL, NULL },
	{ "[profilx default]\n" KEYS, "", NULL, NULL },
	{ "", "[profile default]\n" KEYS, NULL, NULL },
	{ "[default\n" KEYS, "", NULL, NULL },
	{ "[\n" KEYS, "", NULL, NULL },
	{ "default]\n" KEYS, "", NULL, NULL },
	{ "[]\n" KEYS, "", NULL, NULL },
	{ "[other]\n" KEYS, "", NULL, NULL },
	{ KEYS, "", NULL, NULL },
	{ "[default]\n[other]\n" KEYS, "", NULL, NULL },
	{ "# [x]\n; y\n\n \t\n[default]\n#region=a\n;region=b\nregion=c\n" KEYS, "", "A", "c" },
	{ "[default]\nregion\nregion=\nregion = \nregion=r=s\nregion=t\n" KEYS, "", "A", "r=s" },
	{ "[default]\n\tregion=nested\n region=nested\n" KEYS "region=r", "", "A", "r" },
	{ "[default]\nregions=a\nregio=b\nREGION=c\n" KEYS, "", "A", NULL },
	{ "[default]\naws_access_key_id=A\n", "", NULL, NULL },
	{ "[default]\naws_secret_access_key=A\n", "", NULL, NULL },
};

START_LOOP_TEST(files_are_read_as_those_of_aws_are, ARRAY_LEN(files))
{
	struct ckpt_err e = { 0 };
	struct creds_key k = { 0 };

	(void)setenv("AWS_CONFIG_FILE", file("config", files[_i].config), 1);
	(void)setenv("AWS_SHARED_CREDENTIALS_FILE", file("credentials", files[_i].credentials), 1);
	if (files[_i].access) {
		ck_assert_msg(!creds_open(net, NULL, false, &creds, &e), "%s", e.msg);
		ck_assert_int_eq(creds_get(creds, &k, &e), 0);
		ck_assert_str_eq(k.access, files[_i].access);
		ck_assert_str_eq(k.secret, "SECRET");
		ck_assert_pstr_eq(creds_region(creds), files[_i].region);
		creds_key_release(&k);
		creds_free(creds);
	} else
		expect_error(NULL, -EACCES, "no credentials were found");
	creds_free(NULL);
}
END_TEST

START_TEST(files_are_below_home_and_may_be_missing)
{
	char path[4300];

	(void)snprintf(path, sizeof(path), "%s/.aws", dir);
	ck_assert_int_eq(mkdir(path, 0700), 0);
	expect_error(NULL, -EACCES, "no credentials were found");
	(void)file(".aws/credentials", "[default]\naws_access_key_id=A\n");
	(void)file(".aws/config", "[default]\naws_secret_access_key=SECRET\n");
	expect(NULL, "A", "SECRET", NULL);
	creds_free(creds);
	/* A path that goes through a file is treated like one that does not exist. */
	(void)setenv("AWS_CONFIG_FILE", file("file", ""), 1);
	(void)snprintf(path, sizeof(path), "%s/file/config", dir);
	(void)setenv("AWS_CONFIG_FILE", path, 1);
	expect_error(NULL, -EACCES, "no credentials were found");
	(void)setenv("AWS_CONFIG_FILE", dir, 1);
	expect_error(NULL, -EISDIR, "Is a directory");
	(void)unsetenv("AWS_CONFIG_FILE");
	(void)unsetenv("HOME");
	expect_error(NULL, -EACCES, "no credentials were found");
	(void)setenv("AWS_EC2_METADATA_DISABLED", "TRUE", 1);
	expect_error(NULL, -EACCES, "no credentials were found in the environment");
}
END_TEST

/* ---- which source ---- */

static const struct {
	const char *config;
	const char *env[6]; /* NAME, value, ... */
	int (*get)(struct creds_source *s, struct creds_got *ret, struct ckpt_err *e);
	const char *what; /* the command, role, URL or key */
	int rc;		  /* not 0: `what` is part of the message */
} sources[] = {
	{ "", { NULL }, creds_instance, NULL, 0 },
	{ "", { "AWS_EC2_METADATA_DISABLED", "false" }, creds_instance, NULL, 0 },
	{ "", { "AWS_EC2_METADATA_DISABLED", "true" }, NULL, "no credentials", -EACCES },
	{ "", { "AWS_ACCESS_KEY_ID", "A" }, creds_instance, NULL, 0 },
	{ "", { "AWS_ACCESS_KEY_ID", "A", "AWS_SECRET_ACCESS_KEY", "S" }, creds_fixed, "A", 0 },
	{ "[default]\ncredential_process = x y\n",
	  { "AWS_ACCESS_KEY_ID", "A", "AWS_SECRET_ACCESS_KEY", "S" },
	  creds_fixed,
	  "A",
	  0 },
	{ "[default]\ncredential_process = x y\n", { NULL }, creds_process, "x y", 0 },
	{ "[default]\nrole_arn = r\nweb_identity_token_file = f\n",
	  { NULL },
	  creds_web_identity,
	  "r f ckptfs",
	  0 },
	{ "[default]\nrole_arn = r\nweb_identity_token_file = f\nrole_session_name = s\n" KEYS,
	  { NULL },
	  creds_web_identity,
	  "r f s",
	  0 },
	{ "[default]\nweb_identity_token_file = f\n", { NULL }, creds_instance, NULL, 0 },
	{ "[default]\nrole_arn = r\n" KEYS, { NULL }, NULL, "has a role_arn", -EINVAL },
	{ "[default]\nsso_start_url = u\n", { NULL }, NULL, "uses SSO", -EINVAL },
	{ "[default]\nsso_session = u\n", { NULL }, NULL, "uses SSO", -EINVAL },
	{ "[profile p]\nsso_session = u\n", { "AWS_PROFILE", "p" }, NULL, "'p' uses SSO", -EINVAL },
	{ "", { "AWS_PROFILE", "p" }, creds_instance, NULL, 0 },
	{ "", { "AWS_WEB_IDENTITY_TOKEN_FILE", "f" }, creds_instance, NULL, 0 },
	{ "", { "AWS_ROLE_ARN", "r" }, creds_instance, NULL, 0 },
	{ "",
	  { "AWS_WEB_IDENTITY_TOKEN_FILE", "f", "AWS_ROLE_ARN", "r" },
	  creds_web_identity,
	  "r f ckptfs",
	  0 },
	{ "",
	  { "AWS_WEB_IDENTITY_TOKEN_FILE", "f", "AWS_ROLE_ARN", "r", "AWS_ROLE_SESSION_NAME", "n" },
	  creds_web_identity,
	  "r f n",
	  0 },
	{ "",
	  { "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI", "/x" },
	  creds_container,
	  "http://169.254.170.2/x",
	  0 },
	{ "",
	  { "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI", "/x", "AWS_CONTAINER_CREDENTIALS_FULL_URI",
	    "https://h/" },
	  creds_container,
	  "http://169.254.170.2/x",
	  0 },
	{ "",
	  { "AWS_CONTAINER_CREDENTIALS_FULL_URI", "https://h/" },
	  creds_container,
	  "https://h/",
	  0 },
};

START_LOOP_TEST(the_first_source_that_is_set_up_is_used, ARRAY_LEN(sources))
{
	struct creds_source s = { .net = net };
	struct ckpt_err e = { 0 };
	char what[256] = "";
	int rc;

	(void)unsetenv("AWS_EC2_METADATA_DISABLED");
	(void)setenv("AWS_CONFIG_FILE", file("config", sources[_i].config), 1);
	for (size_t i = 0; i < 6 && sources[_i].env[i]; i += 2)
		(void)setenv(sources[_i].env[i], sources[_i].env[i + 1], 1);
	rc = creds_find(&s, NULL, false, &e);
	ck_assert_msg(rc == sources[_i].rc, "%d: %s", rc, e.msg);
	if (rc)
		ck_assert_msg(strstr(e.msg, sources[_i].what) != NULL, "%s", e.msg);
	else {
		ck_assert(s.get == sources[_i].get);
		ck_assert_int_eq(s.can_renew, s.get != creds_fixed);
		if (s.role)
			(void)snprintf(what, sizeof(what), "%s %s %s", s.role, s.token_file,
				       s.session);
		else
			(void)snprintf(what, sizeof(what), "%s",
				       s.url		? s.url
				       : s.command	? s.command
				       : s.fixed.access ? s.fixed.access
							: "");
		ck_assert_str_eq(what, sources[_i].what ? sources[_i].what : "");
	}
	creds_source_release(&s);
}
END_TEST

START_TEST(anonymous_needs_none)
{
	struct ckpt_err e = { 0 };
	struct creds_key k = { 0 };

	ck_assert_int_eq(creds_open(net, NULL, true, &creds, &e), 0);
	ck_assert_int_eq(creds_get(creds, &k, &e), 0);
	ck_assert_ptr_null(k.access);
	creds_free(creds);
	expect_error(NULL, -EACCES, "no credentials were found");
}
END_TEST

static const struct {
	const char *command;
	int rc; /* 0: A SECRET T */
	const char *says;
} commands[] = {
	{ "echo '{\"Version\":1,\"AccessKeyId\":\"A\",\"SecretAccessKey\":\"SECRET\","
	  "\"SessionToken\":\"T\",\"Expiration\":\"2100-01-01T00:00:00Z\"}'",
	  0, "" },
	{ "echo SECRET", -EACCES, "did not answer with JSON" },
	{ "true", -EACCES, "did not answer with JSON" },
	{ "exit 3", -EACCES, "ended with status 3" },
	{ "echo '{\"SecretAccessKey\":\"SECRET\"}'", -EACCES, "without an AccessKeyId" },
	{ "echo '{\"AccessKeyId\":\"A\",\"SecretAccessKey\":\"SECRET\",\"Expiration\":\"never\"}'",
	  -EACCES, "not a time" },
	{ "while echo SECRET; do :; done", -EFBIG, "read from" },
	{ "kill -9 $$", -EACCES, "ended with status 137" },
	{ "exec /nowhere/at/all 2> /dev/null", -EACCES, "ended with status 12" },
	{ "echo '[]'", -EACCES, "without an AccessKeyId" },
	{ "echo '{\"AccessKeyId\":\"\",\"SecretAccessKey\":\"SECRET\"}'", -EACCES, "without an" },
	{ "echo '{\"AccessKeyId\":\"A\"}'", -EACCES, "without an AccessKeyId and a Secret" },
	{ "echo '{\"AccessKeyId\":\"A\",\"SecretAccessKey\":\"\"}'", -EACCES, "without an" },
	{ "echo '{\"AccessKeyId\":1,\"SecretAccessKey\":\"SECRET\"}'", -EACCES, "without an" },
	/* The command goes on in the background; nobody waits for it. */
	{ "echo '{\"AccessKeyId\":\"A\",\"SecretAccessKey\":\"SECRET\",\"SessionToken\":\"T\"}'; "
	  "exec > /dev/null; sleep 0.05",
	  0, "" },
};

START_LOOP_TEST(a_command_can_be_asked, ARRAY_LEN(commands))
{
	char text[1024];

	(void)snprintf(text, sizeof(text), "[default]\ncredential_process = %s\n",
		       commands[_i].command);
	(void)setenv("AWS_CONFIG_FILE", file("config", text), 1);
	if (commands[_i].rc)
		expect_error(NULL, commands[_i].rc, commands[_i].says);
	else {
		expect(NULL, "A", "SECRET", "T");
		creds_free(creds);
	}
}
END_TEST

/* ---- servers ---- */

#define JSON \
	"{\"Code\":\"Success\",\"AccessKeyId\":\"A%u\",\"SecretAccessKey\":\"SECRET\"," \
	"\"Token\":\"T\",\"Expiration\":\"%s\"}"

static const char *until = "2100-01-01T00:00:00Z";
static _Atomic unsigned given;

static bool serve(struct served *r)
{
	char body[1024];
	int n = snprintf(body, sizeof(body), JSON, atomic_load(&given) + 1, until);

	if (!strcmp(r->target, "/agent")) {
		REQUIRE(!strcmp(request_field(r, "Authorization"), "bearer"));
		atomic_fetch_add(&given, 1);
		return answer(r, 200, "", body, (size_t)n);
	}
	if (!strcmp(r->target, "/latest/api/token")) {
		REQUIRE(!strcmp(r->method, "PUT"));
		return answer(r, 200, "", "metatoken", 9);
	}
	if (!strncmp(r->target, "/latest/", 8))
		REQUIRE(!strcmp(request_field(r, "X-aws-ec2-metadata-token"), "metatoken"));
	if (!strcmp(r->target, "/latest/meta-data/iam/security-credentials/"))
		return answer(r, 200, "", "a role\n", 7);
	if (!strcmp(r->target, "/latest/meta-data/iam/security-credentials/a%20role"))
		return answer(r, 200, "", body, (size_t)n);
	if (!strcmp(r->target, "/sts") && !strcmp(r->method, "POST")) {
		n = snprintf(
			body, sizeof(body),
			"<AssumeRoleWithWebIdentityResponse xmlns=\"https://x/\">"
			"<AssumeRoleWithWebIdentityResult><Credentials><AccessKeyId>AW"
			"</AccessKeyId><SecretAccessKey>SECRETW</SecretAccessKey><SessionToken>TW"
			"</SessionToken><Expiration>%s</Expiration></Credentials>"
			"</AssumeRoleWithWebIdentityResult>"
			"</AssumeRoleWithWebIdentityResponse>",
			until);
		return answer(r, 200, "", body, (size_t)n);
	}
	return answer(r, 404, "", "", 0);
}

static const char *address(const char *path)
{
	static char a[256];

	if (!port)
		port = server_start(serve);
	(void)snprintf(a, sizeof(a), "http://127.0.0.1:%u%s", port, path);
	return a;
}

START_TEST(the_agent_of_a_container_is_asked)
{
	(void)setenv("AWS_CONTAINER_CREDENTIALS_FULL_URI", address("/agent"), 1);
	(void)setenv("AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE", file("token", "bearer\n"), 1);
	expect(NULL, "A1", "SECRET", "T");
	creds_free(creds);
	(void)setenv("AWS_CONTAINER_CREDENTIALS_FULL_URI", "http://example.com/x", 1);
	expect_error(NULL, -EINVAL, "neither an https address nor on this machine");
	(void)setenv("AWS_CONTAINER_CREDENTIALS_FULL_URI", "http://127.0.0.1.example.com/x", 1);
	expect_error(NULL, -EINVAL, "neither an https address nor on this machine");
}
END_TEST

START_TEST(the_instance_is_asked_last)
{
	(void)unsetenv("AWS_EC2_METADATA_DISABLED");
	(void)setenv("AWS_EC2_METADATA_SERVICE_ENDPOINT", address("/"), 1);
	expect(NULL, "A1", "SECRET", "T");
	creds_free(creds);
	(void)setenv("AWS_EC2_METADATA_SERVICE_ENDPOINT", "http://127.0.0.1:1", 1);
	expect_error(NULL, -EACCES, "no credentials were found");
}
END_TEST

START_TEST(sts_gives_those_of_a_role_for_a_token)
{
	(void)setenv("AWS_ENDPOINT_URL_STS", address("/sts"), 1);
	(void)setenv("AWS_ROLE_ARN", "arn:aws:iam::1:role/x", 1);
	(void)setenv("AWS_WEB_IDENTITY_TOKEN_FILE", file("token", "a.b.SECRET"), 1);
	expect(NULL, "AW", "SECRETW", "TW");
	creds_free(creds);
	(void)setenv("AWS_ENDPOINT_URL_STS", address("/nothing"), 1);
	expect_error(NULL, -EACCES, "the server answered 404");
}
END_TEST

/* ---- a server that says something else ---- */

static const char *scripted(const struct reply *v, size_t n, const char *path)
{
	static char a[256];

	if (!port)
		port = server_start(serve_script);
	script_set(v, n);
	(void)snprintf(a, sizeof(a), "http://127.0.0.1:%u%s", port, path);
	return a;
}

#define GOOD \
	"{\"AccessKeyId\":\"A\",\"SecretAccessKey\":\"SECRET\",\"Token\":\"T\"," \
	"\"Expiration\":\"2100-01-01T00:00:00Z\"}"

static const struct {
	struct reply reply;
	int rc;
	const char *says;
} agents[] = {
	{ { 200, NULL, GOOD }, 0, "" },
	{ { 200, NULL, "" }, -EACCES, "the container's credentials did not answer with JSON" },
	{ { 200, NULL, "SECRET" },
	  -EACCES,
	  "the container's credentials did not answer with JSON" },
	{ { 200, NULL, "{}" }, -EACCES, "answered without an AccessKeyId" },
	{ { 404, NULL, "SECRET" }, -EACCES, "the server answered 404" },
	{ { 400, NULL, "<Error><Code>Denied</Code></Error>" }, -EACCES, "answered 400 (Denied)" },
	{ { 400, NULL, "<Error>SECRET" }, -EACCES, "answered 400" },
	{ { 201, NULL, GOOD }, -EACCES, "the server answered 201" },
	{ { 302, "Location: http://x/\r\n", NULL }, -EACCES, "the server answered 302" },
};

START_LOOP_TEST(what_an_agent_answers_is_checked, ARRAY_LEN(agents))
{
	(void)setenv("AWS_CONTAINER_CREDENTIALS_FULL_URI", scripted(&agents[_i].reply, 1, "/x"), 1);
	if (agents[_i].rc)
		expect_error(NULL, agents[_i].rc, agents[_i].says);
	else {
		expect(NULL, "A", "SECRET", "T");
		creds_free(creds);
	}
	ck_assert_str_eq(script.log, "GET /x\n");
	ck_assert_ptr_null(strstr(script.head, "Authorization"));
	(void)setenv("AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE", file("token", " \r\n\t"), 1);
	expect_error(NULL, -EACCES, "is empty, and should be a token");
	(void)setenv("AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE", "/nowhere/token", 1);
	expect_error(NULL, -ENOENT, "/nowhere/token");
	ck_assert_str_eq(script.log, "GET /x\n"); /* it was not asked again */
}
END_TEST

static const char *const not_agents[] = {
	"nonsense",
	"http://",
	"ftp://127.0.0.1/x",
	"http://localhosts/x",
	"http://169.254.170.20/",
	"http://169.254.170.232/x",
	"http://[::2]/x",
	"http://127.0.0.2/x",
	"http://me:SECRET@localhost/x",
};

START_LOOP_TEST(a_token_goes_to_this_machine_or_by_https_only, ARRAY_LEN(not_agents))
{
	(void)setenv("AWS_CONTAINER_CREDENTIALS_FULL_URI", not_agents[_i], 1);
	expect_error(NULL, -EINVAL,
		     "neither an https address nor on this machine, which is refused");
}
END_TEST

static const struct {
	struct reply replies[3]; /* the token, the role and the keys */
	const char *says;	 /* NULL: good */
	unsigned requests;
} instances[] = {
	{ { { 200, NULL, "t" }, { 200, NULL, "role\r\nother" }, { 200, NULL, GOOD } }, NULL, 3 },
	{ { { 404, NULL, NULL }, { 0 }, { 0 } }, "no credentials were found", 1 },
	{ { { 200, NULL, "t" }, { 404, NULL, NULL }, { 0 } }, "the server answered 404", 2 },
	{ { { 200, NULL, "t" }, { 200, NULL, "" }, { 0 } }, "the instance has no role", 2 },
	{ { { 200, NULL, "t" }, { 200, NULL, "\nrole" }, { 0 } }, "the instance has no role", 2 },
	{ { { 200, NULL, "t" }, { 200, NULL, "r" }, { 404, NULL, NULL } }, "answered 404", 3 },
	{ { { 200, NULL, "t" }, { 200, NULL, "r" }, { 200, NULL, "{\"Code\":\"Failed\"}" } },
	  "the instance's metadata answered without an AccessKeyId",
	  3 },
	{ { { 200, NULL, "" }, { 200, NULL, "r" }, { 200, NULL, GOOD } }, NULL, 3 },
};

START_LOOP_TEST(the_instance_is_asked_in_three_steps, ARRAY_LEN(instances))
{
	(void)unsetenv("AWS_EC2_METADATA_DISABLED");
	(void)setenv("AWS_EC2_METADATA_SERVICE_ENDPOINT",
		     scripted(instances[_i].replies, 3, _i % 2 ? "/" : ""), 1);
	if (instances[_i].says)
		expect_error(NULL, -EACCES, instances[_i].says);
	else {
		expect(NULL, "A", "SECRET", "T");
		creds_free(creds);
		ck_assert_msg(!strncmp(script.log,
				       "PUT /latest/api/token\n"
				       "GET /latest/meta-data/iam/security-credentials/\n"
				       "GET /latest/meta-data/iam/security-credentials/r",
				       117),
			      "%s", script.log);
	}
	ck_assert_uint_eq(atomic_load(&script.served), instances[_i].requests);
}
END_TEST

#define STS(...) "<R><Credentials>" __VA_ARGS__ "</Credentials></R>"
#define ACCESS	 "<AccessKeyId>A</AccessKeyId>"
#define HIDDEN	 "<SecretAccessKey>SECRET</SecretAccessKey>"
#define EXPIRES	 "<Expiration>2100-01-01T00:00:00Z</Expiration>"

static const struct {
	struct reply reply;
	const char *says; /* NULL: good */
	int rc;
} services[] = {
	{ { 200, NULL, STS(ACCESS HIDDEN EXPIRES "<SessionToken>T</SessionToken>") }, NULL, 0 },
	{ { 200, NULL, STS(ACCESS ACCESS HIDDEN EXPIRES "<SessionToken>T</SessionToken>") },
	  NULL,
	  0 },
	{ { 200, NULL, "" }, "the service STS: ", -EIO },
	{ { 200, NULL, "SECRET" }, "the service STS: ", -EIO },
	{ { 200, NULL, STS(HIDDEN EXPIRES) },
	  "the service STS answered without credentials",
	  -EACCES },
	{ { 200, NULL, STS("<AccessKeyId/>" HIDDEN EXPIRES) },
	  "answered without credentials",
	  -EACCES },
	{ { 200, NULL, STS(ACCESS EXPIRES) }, "answered without credentials", -EACCES },
	{ { 200, NULL, STS(ACCESS "<SecretAccessKey/>" EXPIRES) },
	  "answered without credentials",
	  -EACCES },
	{ { 200, NULL, STS(ACCESS HIDDEN) }, "answered without credentials", -EACCES },
	{ { 200, NULL, STS(ACCESS HIDDEN "<Expiration>never</Expiration>") },
	  "without credentials",
	  -EACCES },
	{ { 403, NULL, "<ErrorResponse><Error><Code>Denied</Code></Error></ErrorResponse>" },
	  "'the service STS': the server answered 403 (Denied)",
	  -EACCES },
	{ { 400, NULL, "{\"SECRET\":1}" }, "'the service STS': the server answered 400", -EACCES },
};

START_LOOP_TEST(what_sts_answers_is_checked, ARRAY_LEN(services))
{
	(void)setenv("AWS_ENDPOINT_URL_STS", scripted(&services[_i].reply, 1, "/"), 1);
	(void)setenv("AWS_ROLE_ARN", "a:r&1", 1);
	(void)setenv("AWS_ROLE_SESSION_NAME", "n", 1);
	(void)setenv("AWS_WEB_IDENTITY_TOKEN_FILE", file("token", "t+1\r\n"), 1);
	if (services[_i].says)
		expect_error(NULL, services[_i].rc, services[_i].says);
	else {
		expect(NULL, "A", "SECRET", "T");
		creds_free(creds);
	}
	ck_assert_str_eq(script.log, "POST /\n");
	ck_assert_str_eq(script.body, "Action=AssumeRoleWithWebIdentity&Version=2011-06-15&"
				      "RoleArn=a%3Ar%261&RoleSessionName=n&WebIdentityToken=t%2B1");
}
END_TEST

START_TEST(what_would_not_fit_into_a_request_to_sts_is_refused)
{
	static char much[5000];

	memset(much, 'x', sizeof(much) - 1);
	(void)setenv("AWS_ENDPOINT_URL_STS", much, 1);
	(void)setenv("AWS_ROLE_ARN", "r", 1);
	(void)setenv("AWS_WEB_IDENTITY_TOKEN_FILE", file("token", "t"), 1);
	expect_error(NULL, -EFBIG, "the request to STS is too long");
	(void)setenv("AWS_WEB_IDENTITY_TOKEN_FILE", file("token", "\n"), 1);
	expect_error(NULL, -EACCES, "is empty, and should be a token");
	(void)setenv("AWS_WEB_IDENTITY_TOKEN_FILE", "/nowhere/token", 1);
	expect_error(NULL, -ENOENT, "/nowhere/token");
}
END_TEST

/* ---- renewal ---- */

/* Waits until it is known whether the keys can be renewed. */
static int await(struct creds_key *ret, struct ckpt_err *e)
{
	uint64_t end = clock_ns() + 10 * CLOCK_SECOND;
	int rc;

	while ((rc = creds_get(creds, ret, e)) == -EAGAIN) {
		ck_assert_uint_lt(clock_ns(), end);
		(void)usleep(1000);
	}
	return rc;
}

/* A command that works only once. */
static void command_that_works_once(const char *expiration)
{
	char text[1024];

	(void)snprintf(text, sizeof(text),
		       "[default]\ncredential_process = mkdir %.800s/once 2> /dev/null && echo "
		       "'{\"AccessKeyId\":\"A\",\"SecretAccessKey\":\"SECRET\"%s}'\n",
		       dir, expiration);
	(void)setenv("AWS_CONFIG_FILE", file("config", text), 1);
}

START_TEST(keys_that_have_expired_and_cannot_be_renewed_are_an_error)
{
	struct ckpt_err e = { 0 };
	struct creds_key k = { 0 };

	command_that_works_once(",\"Expiration\":\"2001-01-01T00:00:00Z\"");
	ck_assert_msg(!creds_open(net, NULL, false, &creds, &e), "%s", e.msg);
	ck_assert_int_eq(await(&k, &e), -EACCES);
	ck_assert_str_eq(e.msg, "the credentials have expired, and their renewal failed: "
				"the command of credential_process ended with status 1");
	ck_assert_ptr_null(k.access);
	ck_assert(!creds_are_new(creds));
	creds_free(creds);
}
END_TEST

/* The server may have refused for another reason. */
START_TEST(keys_that_a_server_refused_and_cannot_be_renewed_are_used_again)
{
	struct ckpt_err e = { 0 };
	struct creds_key k = { 0 };

	command_that_works_once("");
	ck_assert_msg(!creds_open(net, NULL, false, &creds, &e), "%s", e.msg);
	ck_assert(!creds_are_new(creds));
	ck_assert(creds_refused(creds, "A"));
	ck_assert_int_eq(await(&k, &e), 0);
	ck_assert_str_eq(k.access, "A");
	creds_key_release(&k);
	ck_assert(!creds_are_new(creds));
	ck_assert(!creds_refused(creds, "A")); /* another try so soon would be of no use */
	creds_free(creds);
}
END_TEST

/* ---- no memory ---- */

static const char *const jobs[] = { "fixed", "command", "agent", "instance", "sts" };

static void set_up(int job)
{
	switch (job) {
	case 0:
		(void)setenv("AWS_CONFIG_FILE",
			     file("config", "[default]\nregion=r\naws_access_key_id = A1\n"
					    "aws_secret_access_key = SECRET\n"
					    "aws_session_token = T\nendpoint_url = http://h\n"),
			     1);
		break;
	case 1:
		(void)setenv("AWS_CONFIG_FILE",
			     file("config",
				  "[default]\ncredential_process = echo '{\"AccessKeyId\":\"A1\","
				  "\"SecretAccessKey\":\"SECRET\",\"SessionToken\":\"T\"}'\n"),
			     1);
		break;
	case 2:
		(void)setenv("AWS_CONTAINER_CREDENTIALS_FULL_URI", address("/agent"), 1);
		(void)setenv("AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE", file("token", "bearer"), 1);
		break;
	case 3:
		(void)unsetenv("AWS_EC2_METADATA_DISABLED");
		(void)setenv("AWS_EC2_METADATA_SERVICE_ENDPOINT", address("/"), 1);
		break;
	default:
		(void)setenv("AWS_ENDPOINT_URL_STS", address("/sts"), 1);
		(void)setenv("AWS_ROLE_ARN", "arn:aws:iam::1:role/x", 1);
		(void)setenv("AWS_WEB_IDENTITY_TOKEN_FILE", file("token", "a.b"), 1);
	}
}

START_LOOP_TEST(whatever_fails_is_a_clean_error_and_leaves_nothing, ARRAY_LEN(jobs))
{
	unsigned failed = 0;

	set_up(_i);
	net_free(net);
	net = NULL;
	FAULT_LOOP((enum fault_kind)(FAULT_ALLOC | FAULT_OPEN | FAULT_READ))
	{
		int64_t live = fault_live();
		struct ckpt_err e = { 0 };
		struct creds_key k = { 0 };
		int rc;

		atomic_store(&given, 0);
		creds = NULL;
		net = NULL; /* the old one is gone, so that nothing of a call is left */
		rc = net_new(&(struct net_options){ .retry_ms = 500 }, &net, &e);
		if (!rc)
			rc = creds_open(net, NULL, false, &creds, &e);
		if (!rc)
			rc = creds_get(creds, &k, &e);
		fault_off();
		failed += rc != 0;
		ck_assert_msg(!rc ? !strcmp(k.access, _i == 4 ? "AW" : "A1") &&
					      !strcmp(k.token, _i == 4 ? "TW" : "T")
				  : rc == -e.code && *e.msg,
			      "%s: %d: %s, %s", jobs[_i], rc, e.msg, fault_name());
		ck_assert_ptr_null(strstr(e.msg, "SECRET"));
		creds_key_release(&k);
		creds_free(creds);
		net_free(net);
		net = NULL;
		ck_assert_msg(fault_live() == live, "%s: %s leaves %lld bytes: %s", jobs[_i],
			      fault_name(), (long long)(fault_live() - live), e.msg);
	}
	ck_assert_uint_gt(failed, 0);
}
END_TEST

/* Waits for a key other than `before`. */
static void await_renewal(const char *before)
{
	uint64_t end = clock_ns() + 10 * CLOCK_SECOND;
	struct ckpt_err e = { 0 };

	for (;;) {
		struct creds_key k = { 0 };
		int rc = creds_get(creds, &k, &e);
		bool is_new = !rc && strcmp(k.access, before) != 0;

		ck_assert(!rc || rc == -EAGAIN);
		creds_key_release(&k);
		if (is_new)
			return;
		ck_assert_uint_lt(clock_ns(), end);
		(void)usleep(1000);
	}
}

START_TEST(what_will_expire_soon_or_has_been_refused_is_renewed)
{
	char soon[32];
	time_t t = time(NULL) + 60;
	struct tm tm;

	(void)setenv("AWS_CONTAINER_CREDENTIALS_FULL_URI", address("/agent"), 1);
	(void)setenv("AWS_CONTAINER_AUTHORIZATION_TOKEN", "bearer", 1);
	(void)strftime(soon, sizeof(soon), "%Y-%m-%dT%H:%M:%SZ", gmtime_r(&t, &tm));
	until = soon;
	expect(NULL, "A1", "SECRET", "T"); /* still valid, but being renewed already */
	await_renewal("A1");
	creds_free(creds);
	until = "2100-01-01T00:00:00Z";
	atomic_store(&given, 4);
	expect(NULL, "A5", "SECRET", "T");
	ck_assert(creds_refused(creds, "older")); /* there are newer ones already */
	ck_assert(creds_refused(creds, "A5"));
	await_renewal("A5");
	ck_assert(!creds_refused(creds, "A6")); /* so soon it would be of no use */
	creds_free(creds);
}
END_TEST

SUITE(creds, .setup = forget_environment, .teardown = stop, .seconds = 60)
