/* SPDX-License-Identifier: Apache-2.0 */
/* Credentials: which source is chosen, what each is asked, and that no sentence has a secret. */
#include "dir_util.h"
#include "remote_util.h"
#include "suites.h"

#include "base/checked.h"
#include "base/clock.h"
#include "remote/creds.h"

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
		ck_assert_str_eq(request_field(r, "Authorization"), "bearer");
		atomic_fetch_add(&given, 1);
		return answer(r, 200, "", body, (size_t)n);
	}
	if (!strcmp(r->target, "/latest/api/token")) {
		ck_assert_str_eq(r->method, "PUT");
		return answer(r, 200, "", "metatoken", 9);
	}
	if (!strncmp(r->target, "/latest/", 8))
		ck_assert_str_eq(request_field(r, "X-aws-ec2-metadata-token"), "metatoken");
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
	expect_error(NULL, -EINVAL, "neither of https nor of this machine");
	(void)setenv("AWS_CONTAINER_CREDENTIALS_FULL_URI", "http://127.0.0.1.example.com/x", 1);
	expect_error(NULL, -EINVAL, "neither of https nor of this machine");
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

/* Waits for another key than `before`. */
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
	expect(NULL, "A1", "SECRET", "T"); /* still valid, and already being renewed */
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

SUITE(creds, .setup = forget_environment, .teardown = stop, .seconds = 30)
