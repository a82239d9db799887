/* SPDX-License-Identifier: Apache-2.0 */
#include "base/err.h"

#include "base/text.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

int err_set(struct ckpt_err *e, int code, const char *fmt, ...)
{
	va_list ap;

	va_start(ap, fmt);
	(void)vsnprintf(e->msg, sizeof(e->msg), fmt, ap);
	va_end(ap);
	text_make_fit(e->msg); /* it may quote a hostile name */
	e->code = code;
	return -code;
}

int err_sys(struct ckpt_err *e, int code, const char *fmt, ...)
{
	char why[96];
	va_list ap;
	size_t n;

	va_start(ap, fmt);
	(void)vsnprintf(e->msg, sizeof(e->msg), fmt, ap);
	va_end(ap);
	n = strlen(e->msg);
	(void)snprintf(e->msg + n, sizeof(e->msg) - n, ": %s", strerror_r(code, why, sizeof(why)));
	text_make_fit(e->msg);
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
	size_t n;

	memcpy(inner, e->msg, sizeof(inner));
	va_start(ap, fmt);
	(void)vsnprintf(e->msg, sizeof(e->msg), fmt, ap);
	va_end(ap);
	n = strlen(e->msg);
	(void)snprintf(e->msg + n, sizeof(e->msg) - n, ": %s", inner);
	text_make_fit(e->msg);
	if (!e->code) /* an error without a code must not turn into success */
		e->code = EIO;
	return -e->code;
}
