/* SPDX-License-Identifier: Apache-2.0 */
#include "base/err.h"

#include "base/text.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

/* Makes the sentence ready to be shown; whole: its length before it was cut off to fit. */
static void finish(struct ckpt_err *e, size_t whole)
{
	static const char dots[] = "...";

	if (whole >= sizeof(e->msg))
		memcpy(e->msg + sizeof(e->msg) - sizeof(dots), dots, sizeof(dots));
	text_make_fit(e->msg); /* it may quote a hostile name */
}

/* Adds ": WHY" to the sentence, of which n bytes would be there if all fitted. */
static void add_reason(struct ckpt_err *e, int n, const char *why)
{
	size_t len = strlen(e->msg);

	(void)snprintf(e->msg + len, sizeof(e->msg) - len, ": %s", why);
	finish(e, (size_t)n + 2 + strlen(why));
}

int err_set(struct ckpt_err *e, int code, const char *fmt, ...)
{
	va_list ap;
	int n;

	va_start(ap, fmt);
	n = vsnprintf(e->msg, sizeof(e->msg), fmt, ap);
	va_end(ap);
	finish(e, (size_t)n);
	e->code = code;
	return -code;
}

int err_sys(struct ckpt_err *e, int code, const char *fmt, ...)
{
	char why[96];
	va_list ap;
	int n;

	va_start(ap, fmt);
	n = vsnprintf(e->msg, sizeof(e->msg), fmt, ap);
	va_end(ap);
	add_reason(e, n, strerror_r(code, why, sizeof(why)));
	e->code = code;
	return -code;
}

int err_nomem(struct ckpt_err *e)
{
	return err_set(e, ENOMEM, "out of memory");
}

int err_wrap(struct ckpt_err *e, const char *fmt, ...)
{
	char inner[sizeof(e->msg)];
	va_list ap;
	int n;

	memcpy(inner, e->msg, sizeof(inner));
	va_start(ap, fmt);
	n = vsnprintf(e->msg, sizeof(e->msg), fmt, ap);
	va_end(ap);
	add_reason(e, n, inner);
	if (!e->code) /* an error without a code must not turn into success */
		e->code = EIO;
	return -e->code;
}
