/* SPDX-License-Identifier: Apache-2.0 */
/* Why a name is not in the tree of a checkpoint, where the reason is known. */
#include "base/err.h"
#include "ckpt/ckpt_internal.h"
#include "layout/layout.h"
#include "tree/view.h"

#include <stdio.h>
#include <string.h>

/*
 * For a name in the root, or in a directory of the root: sets `face` to the name of that directory.
 */
static bool is_face(struct tree *t, uint64_t dir, const char *name, char face[static NAME_CAP])
{
	if (dir == CKPT_ROOT)
		(void)snprintf(face, NAME_CAP, "%s", name);
	else if (t->ops->parent(t, dir) != CKPT_ROOT || t->ops->name(t, dir, face))
		return false;
	return true;
}

static bool is_asset(const char *name)
{
	size_t n = strlen(name);
	static const char *const ends[] = { ".json", ".txt", ".model", ".jinja" };

	for (size_t i = 0; i < sizeof(ends) / sizeof(*ends); i++) {
		size_t m = strlen(ends[i]);

		if (n > m && !strcmp(name + n - m, ends[i]))
			return !strstr(name, ".safetensors.");
	}
	return false;
}

bool engine_why_absent(const struct engine *eng, const char *face, const char *name, char *why,
		       size_t cap)
{
	struct view_about about;
	struct view_gguf gguf;

	view_about(eng->view, &about);
	if (!strcmp(face, "gguf")) {
		view_gguf(eng->view, &gguf);
		if (!gguf.missing)
			return false;
		(void)snprintf(why, cap, "%s", gguf.missing);
	} else if (!about.has_model && (!strcmp(face, "hf") || !strcmp(face, "pt"))) {
		(void)snprintf(
			why, cap,
			"there is no model, because two of its tensors would have the same name");
	} else if (!strcmp(face, "hf") && is_asset(name)) {
		(void)snprintf(why, cap,
			       "there is no %.80s, beside the checkpoint or in assets=", name);
	} else if (!strcmp(face, "ranks") && !eng->layout) {
		(void)snprintf(why, cap, "there is no layout=, which says what each rank holds");
	} else if (!strcmp(face, "ranks")) {
		(void)snprintf(why, cap, "the layout has %zu rank%s", layout_ranks(eng->layout),
			       layout_ranks(eng->layout) == 1 ? "" : "s");
	} else if (!strcmp(face, "logical")) {
		(void)snprintf(why, cap, "no tensor is stored flattened");
	} else {
		return false;
	}
	return true;
}

int engine_absent(struct tree *t, uint64_t dir, const char *name, const char *path,
		  struct ckpt_err *e)
{
	char face[NAME_CAP], why[sizeof(e->msg)];

	if (!is_face(t, dir, name, face) ||
	    !engine_why_absent(engine_of(t), face, name, why, sizeof(why)))
		return 0;
	return err_set(e, ENOENT, "'%.100s': there is no such file in the tree: %s", path, why);
}
