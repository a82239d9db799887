/* SPDX-License-Identifier: Apache-2.0 */
/*
 * xml - small XML documents, as object stores answer with: elements and their text.
 *
 * Refused: document types (and so entities), more than 16 levels, texts of more than 16 KiB.
 *
 * Private to core/remote.
 *
 * Threads: pure.
 */
#ifndef REMOTE_XML_H
#define REMOTE_XML_H

#include <stddef.h>

struct ckpt_err;

/* An element has ended: its path without namespaces, "Result/Contents/Key", and its own text.
 * Non-zero ends the parse and is returned. */
typedef int xml_fn(void *arg, const char *path, const char *text, size_t len, struct ckpt_err *e);

/* Errors: EIO: it is not such a document; ENOMEM. */
int xml_parse(const char *p, size_t len, xml_fn *fn, void *arg, struct ckpt_err *e);

#endif
