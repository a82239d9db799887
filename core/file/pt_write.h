/* SPDX-License-Identifier: Apache-2.0 */
/*
 * pt_write - a file that torch.load takes for a state dict that torch.save wrote, made of virtual
 * tensors: archive and pickle are written here, the data only named.
 *
 *	model/data.pkl     {name: tensor, ...} in pickle protocol 2
 *	model/byteorder    "little"
 *	model/data/0 ...   a tensor's bytes each, on a multiple of 64
 *	model/version      "3\n"
 *
 * A ZIP archive of stored records, zip64 where numbers need it. torch.load(mmap=True) maps the
 * tensors out of it, weights_only=True is content with the pickle.
 *
 * Left out: .format_version and .storage_alignment. A reader that finds them may compute where
 * storages lie, from rules about data descriptors that torch.save obeys and this does not, instead
 * of looking. CRC-32: true for the records written here, 0 for tensors, which would have to be
 * read for it. torch never checks them and writes 0 itself after set_crc32_options(False);
 * `unzip -t` and Python's zipfile complain when they are made to read such a record.
 *
 * Sources: torch 2.14 serialization.py, _weights_only_unpickler.py, inline_container.cc; PKWARE
 * APPNOTE 6.3. Threads: pure.
 */
#ifndef FILE_PT_WRITE_H
#define FILE_PT_WRITE_H

#include "model/dtype.h"

#include <stdbool.h>
#include <stddef.h>

struct ckpt_err;
struct tensor_info;
struct vfile;

/* Everything but the quantised dtypes, whose tensors have more to them than elements. */
bool pt_holds(enum ckpt_dtype t);
/* Can it hold this tensor? 0, or ERR_UNSUPPORTED and why not. */
int pt_check(const struct tensor_info *m, struct ckpt_err *e);

/*
 * The file of these n tensors of different names; *ret is the caller's to release. Fails with
 * ERR_UNSUPPORTED where pt_check would, EFBIG, ENOMEM.
 */
int pt_layout(const struct tensor_info *m, size_t n, struct vfile *ret, struct ckpt_err *e);

#endif
