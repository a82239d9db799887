/* SPDX-License-Identifier: Apache-2.0 */
#include "opts_util.h"

#include "base/checked.h"
#include "suites.h"

#include <stdarg.h>
#include <stdio.h>

struct opts_words {
	char text[16384];
	size_t len;
	const char *v[256];
	size_t n;
};

__attribute__((format(printf, 2, 3))) static void add_word(struct opts_words *w, const char *fmt,
							   ...)
{
	va_list ap;
	int n;

	va_start(ap, fmt);
	n = vsnprintf(w->text + w->len, sizeof(w->text) - w->len, fmt, ap);
	va_end(ap);
	REQUIRE(n > 0 && (size_t)n < sizeof(w->text) - w->len && w->n + 1 < ARRAY_LEN(w->v));
	w->v[w->n++] = w->text + w->len;
	w->len += (size_t)n + 1;
}

const char *const *words_of(const struct ckpt_opts *o)
{
	static _Thread_local struct opts_words w;
	struct ckpt_opts copy = *o;
	const struct ckpt_option *x;

	w = (struct opts_words){ 0 };
	for (size_t i = 0; (x = ckpt_option(i)); i++) {
		void *at = ckpt_opts_at(&copy, x);

		if (x->form == CKPT_OPTION_FLAG) {
			if (*(bool *)at)
				add_word(&w, "%s", x->name);
		} else if (x->form == CKPT_OPTION_SIZE) {
			if (*(uint64_t *)at)
				add_word(&w, "%s=%llu", x->name,
					 (unsigned long long)*(uint64_t *)at);
		} else if (x->form == CKPT_OPTION_LIST) {
			for (const char *const *v = *(const char *const **)at; v && *v; v++)
				add_word(&w, "%s=%s", x->name, *v);
		} else if (*(const char **)at) {
			add_word(&w, "%s=%s", x->name, *(const char **)at);
		}
	}
	return w.v;
}
