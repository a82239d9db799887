/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Megatron-core's dist_checkpointing, core_v0.5 to 0.20, sharded backend torch_dist:
 *
 *	DIR/metadata.json    {"sharded_backend": "torch_dist", "sharded_backend_version": 1, ...}
 *	DIR/.metadata        and __R_N.distcp: a DCP checkpoint, see dcp.c. Keys are the model's
 *	                     names, layers are mostly stacked along a first dimension; what is not a
 *	                     tensor is KEY/shard_OFFSET_SHAPE; all_local_plans is not needed
 *	DIR/common.pt        before core_v0.19: torch.save of all that is not sharded
 *
 * metadata.json is written last; without it the directory is just a DCP checkpoint. NeMo 2 keeps
 * DIR in weights/, NeMo 1 in model_weights/.
 */
#include "format/megatron/megatron.h"

#include "base/checked.h"
#include "base/cleanup.h"
#include "base/err.h"
#include "base/json.h"
#include "format/dcp/dcp_records.h"
#include "format/small_file.h"
#include "index/catalog_build.h"
#include "source/place.h"

#include <stdio.h>
#include <string.h>

#define MAX_JSON ((size_t)1 << 20) /* bytes of metadata.json; real ones have about a hundred */

static const char *const backends[] = { "torch_dist", "zarr" };

const char *megatron_base(const char *path)
{
	const char *slash = strrchr(path, '/');

	return slash ? slash + 1 : path;
}

int megatron_path(const char *dir, const char *name, char out[static PATH_MAX], struct ckpt_err *e)
{
	return snprintf(out, PATH_MAX, "%s%s", dir, name) < PATH_MAX
		       ? 0
		       : err_set(e, ENAMETOOLONG, "'%s%.100s...' is too long a name", dir, name);
}

int megatron_list(struct place *place, const char *dir, const char *name, struct name_list *files,
		  struct ckpt_err *e)
{
	char path[PATH_MAX];
	struct place_seen seen;
	int rc = megatron_path(dir, name, path, e);

	if (!rc)
		rc = place_look(place, path, &seen, e);
	if (rc > 0 && name_list_add(files, path, e))
		return -e->code;
	return rc;
}

/* ---- metadata.json ---- */

/* Checks the backend in metadata.json: 1 if it is that one, 0 if the file is unrelated. */
static int check_backend(struct jval j, const char *path, const char *backend, struct ckpt_err *e)
{
	struct jval version = jval_get(j, "sharded_backend_version");
	const char *name = jval_str(jval_get(j, "sharded_backend"));
	int64_t number;

	if (!name) /* some other program's file */
		return 0;
	for (size_t i = 0; i < ARRAY_LEN(backends); i++) {
		if (strcmp(name, backends[i]) != 0)
			continue;
		if (version.d && (!jval_int(version, &number) || number != 1))
			return err_set(e, ERR_UNSUPPORTED,
				       "'%s': of sharded_backend '%s' only version 1 is known",
				       path, name);
		return !strcmp(name, backend);
	}
	return err_set(e, ERR_UNSUPPORTED,
		       "'%s': sharded_backend '%.60s' is neither torch_dist nor zarr", path, name);
}

/* 0: it is not JSON, so not Megatron's. */
static int read_metadata(struct place *place, const char *path, struct jdoc *ret,
			 struct ckpt_err *e)
{
	struct ckpt_err why = { 0 };

	if (!small_file_json(place, path, MAX_JSON, ret, &why))
		return 1;
	if (why.code == ERR_CORRUPT || why.code == EFBIG)
		return 0;
	*e = why;
	return -why.code;
}

int megatron_find(struct place *place, const char *backend, char dir[static MEGATRON_DIR_CAP],
		  struct ckpt_err *e)
{
	static const char *const places[] = { "", "weights/", "model_weights/" };

	for (size_t i = 0; i < ARRAY_LEN(places); i++) {
		CLEANUP(jdoc_release) struct jdoc d = { 0 };
		char path[PATH_MAX];
		struct place_seen seen;
		int rc = i ? place_look(place, ".metadata", &seen, e) : 0;

		if (rc)
			return rc < 0 ? rc : 0; /* the directory itself is a checkpoint */
		(void)snprintf(path, sizeof(path), "%smetadata.json", places[i]);
		rc = place_look(place, path, &seen, e);
		if (rc > 0)
			rc = read_metadata(place, path, &d, e);
		if (rc > 0)
			rc = check_backend(jdoc_root(&d), path, backend, e);
		if (rc > 0)
			(void)snprintf(dir, MEGATRON_DIR_CAP, "%s", places[i]);
		if (rc)
			return rc;
	}
	return 0;
}

/* ---- objects in files of their own ---- */

int megatron_add_object(struct catalog_writer *w, const char *name, const char *path, uint64_t size,
			struct ckpt_err *e)
{
	struct object_item o = { .fqn = name, .fqn_len = strlen(name), .loc = { .length = size } };
	int rc = catalog_add_source(w, path, strlen(path), &o.loc.file, e);

	if (!rc)
		rc = catalog_add_encoding(w, "raw", &o.loc.encoding, e);
	return rc ? rc : catalog_add_object(w, &o, e);
}

int megatron_add_common(struct place *place, const struct name_list *files,
			struct catalog_writer *w, struct ckpt_err *e)
{
	for (size_t i = 0; i < files->n; i++) {
		const char *name = megatron_base(files->v[i]);
		uint64_t size;
		int rc;

		if (strcmp(name, "common.pt") != 0)
			continue;
		rc = small_file_fingerprint(place, files->v[i], w, &size, e);
		return rc ? rc : megatron_add_object(w, name, files->v[i], size, e);
	}
	return 0;
}

/* ---- torch_dist ---- */

/* The list: metadata.json, .metadata, and common.pt if it exists. */
static int probe(struct place *place, const char *file, struct name_list *files, struct ckpt_err *e)
{
	char dir[MEGATRON_DIR_CAP];
	int rc = file ? 0 : megatron_find(place, "torch_dist", dir, e);

	if (rc > 0)
		rc = megatron_list(place, dir, "metadata.json", files, e);
	if (rc > 0) {
		rc = megatron_list(place, dir, ".metadata", files, e);
		if (!rc)
			return err_set(e, ENOENT,
				       "'%smetadata.json' says that it is a Megatron-core "
				       "checkpoint, but '%s.metadata' is missing",
				       dir, dir);
	}
	if (rc > 0)
		rc = megatron_list(place, dir, "common.pt", files, e) < 0 ? -e->code : 1;
	return rc;
}

static int scan(struct place *place, const struct name_list *files, const struct scan_opts *opts,
		struct catalog_writer *w, struct ckpt_err *e)
{
	int rc = small_file_fingerprint(place, files->v[0], w, NULL, e);

	if (!rc)
		rc = dcp_scan(place, &files->v[1], 1, opts, w, e);
	return rc ? rc : megatron_add_common(place, files, w, e);
}

const struct format format_megatron = { .name = "megatron", .probe = probe, .scan = scan };
