/* SPDX-License-Identifier: Apache-2.0 */
#include "gguf_text.h"

#include "base/buf.h"
#include "blob_util.h"
#include "gguf_made.h"
#include "suites.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_KEYS = 100, NAME_CAP = 200 };

struct key {
	char name[NAME_CAP];
	char *value; /* NULL: it is not there */
};

struct keys {
	struct key v[MAX_KEYS];
	size_t n;
};

static void read_keys(struct keys *k, const char *arch, char *text)
{
	char *one;

	while ((one = strsep(&text, ";"))) {
		struct key x = { 0 };
		size_t i = 0;

		one += strspn(one, " ");
		x.value = strchr(one, ' ');
		if (!x.value)
			continue;
		*x.value++ = '\0';
		(void)snprintf(x.name, sizeof(x.name), "%s%s", *one == '.' ? arch : "", one);
		if (!strcmp(x.value, "-"))
			x.value = NULL;
		while (i < k->n && strcmp(k->v[i].name, x.name) != 0)
			i++;
		REQUIRE(i < MAX_KEYS);
		k->n += i == k->n;
		k->v[i] = x;
	}
}

static uint32_t type_of(const char *value)
{
	return *value == '['			? GGUF_ARRAY
	       : *value == '"'			? GGUF_STR
	       : *value == 't' || *value == 'f' ? GGUF_BOOL
	       : strpbrk(value, ".en")		? GGUF_F32
						: GGUF_U32;
}

static void put_value(struct buf *b, const char *value)
{
	float f = strtof(value, NULL);
	uint32_t bits;

	switch (type_of(value)) {
	case GGUF_BOOL:
		made_number(b, *value == 't', 1);
		return;
	case GGUF_F32:
		memcpy(&bits, &f, sizeof(bits));
		made_number(b, bits, 4);
		return;
	case GGUF_STR:
		made_number(b, strlen(value) - 2, 8);
		buf_add(b, value + 1, strlen(value) - 2);
		return;
	default:
		made_number(b, strtoul(value, NULL, 10), 4);
	}
}

static void put_list(struct buf *b, char *value)
{
	char *one;
	uint64_t n = 1;

	value[strlen(value) - 1] = '\0';
	value++;
	for (const char *p = value; *p; p++)
		n += *p == ',';
	made_number(b, type_of(value), 4);
	made_number(b, n, 8);
	while ((one = strsep(&value, ",")))
		put_value(b, one);
}

static uint64_t put_tensor(struct buf *b, const char *one, uint64_t off)
{
	char name[NAME_CAP], dtype[20], shape[100];
	uint64_t ne[4], elements = 1;
	uint32_t n = 0;
	bool q8;

	REQUIRE(sscanf(one, " %199s %19s %99s", name, dtype, shape) == 3);
	for (char *at = shape, *len; n < 4 && (len = strsep(&at, "x")); n++)
		elements *= ne[n] = strtoull(len, NULL, 10);
	for (uint32_t i = 0; i < n / 2; i++) {
		uint64_t x = ne[i];

		ne[i] = ne[n - 1 - i];
		ne[n - 1 - i] = x;
	}
	q8 = !strcmp(dtype, "Q8_0");
	made_tensor(b, name, n, ne,
		    q8			    ? GGML_Q8_0
		    : !strcmp(dtype, "F16") ? GGML_F16
					    : GGML_F32,
		    off);
	return q8 ? elements / 32 * 34 : elements * (!strcmp(dtype, "F16") ? 2 : 4);
}

void gguf_put(int dirfd, const char *file, const char *arch, const char *keys, const char *changes,
	      const char *tensors)
{
	char *texts[] = { strdup(keys), strdup(changes), strdup(tensors) }, *at = texts[2], *one;
	struct buf b = BUF_INIT(1 << 24), list = BUF_INIT(1 << 20);
	struct keys k = { .n = 0 };
	uint64_t n_keys = 0, n_tensors = 0, off = 0;

	read_keys(&k, arch, texts[0]);
	read_keys(&k, arch, texts[1]);
	while ((one = strsep(&at, ";")) && *one) {
		off = (off + put_tensor(&list, one, off) + 31) / 32 * 32;
		n_tensors++;
	}
	for (size_t i = 0; i < k.n; i++)
		n_keys += k.v[i].value != NULL;
	made_head(&b, 3, n_tensors, n_keys);
	for (size_t i = 0; i < k.n; i++) {
		if (!k.v[i].value)
			continue;
		made_key(&b, k.v[i].name, type_of(k.v[i].value));
		if (*k.v[i].value == '[')
			put_list(&b, k.v[i].value);
		else
			put_value(&b, k.v[i].value);
	}
	buf_add(&b, list.data, list.len);
	made_padding(&b, 32);
	for (uint64_t i = 0; i < off; i++)
		made_number(&b, 0, 1);
	REQUIRE(!b.err && !list.err);
	put_file(dirfd, file, b.data, b.len);
	buf_release(&b);
	buf_release(&list);
	for (size_t i = 0; i < 3; i++)
		free(texts[i]);
}
