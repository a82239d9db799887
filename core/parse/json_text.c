/* SPDX-License-Identifier: Apache-2.0 */
#include "parse/json_text.h"

#include <errno.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>

static pthread_once_t once = PTHREAD_ONCE_INIT;
static json_malloc_t next_malloc;
static _Thread_local bool ran_out;

static void *noting_malloc(size_t n)
{
	void *p = next_malloc(n);

	ran_out |= !p;
	return p;
}

static void wrap_malloc(void)
{
	json_free_t next_free;

	json_get_alloc_funcs(&next_malloc, &next_free);
	json_set_alloc_funcs(noting_malloc, next_free);
}

json_t *json_text_load(const char *text, size_t len, size_t flags, json_error_t *why)
{
	json_t *j;

	(void)pthread_once(&once, wrap_malloc);
	ran_out = false;
	j = json_loadb(text, len, flags, why);
	if (!ran_out)
		return j;
	json_decref(j);
	*why = (json_error_t){ .line = 1 };
	(void)snprintf(why->text, sizeof(why->text), "out of memory");
	why->text[JSON_ERROR_TEXT_LENGTH - 1] = json_error_out_of_memory;
	return NULL;
}

int json_text_code(const json_error_t *why, int otherwise)
{
	return json_error_code(why) == json_error_out_of_memory ? ENOMEM : otherwise;
}
