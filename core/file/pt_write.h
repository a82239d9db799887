/* SPDX-License-Identifier: Apache-2.0 */
/*
 * pt_write - a file that torch.load accepts as a state dict written by torch.save, composed of
 * virtual tensors: archive and pickle are generated here, the data is only referenced.
 *
 *	model/data.pkl     {name: tensor, ...} in pickle protocol 2
 *	model/byteorder    "little"
 *	model/data/0 ...   one tensor's bytes each, aligned to 64
 *	model/version      "3\n"
 *
 * A ZIP archive of stored records, zip64 where numbers need it. torch.load(mmap=True) can map the
 * tensors, and weights_only=True accepts the pickle.
 *
 * Left out: .format_version and .storage_alignment. A reader that finds them may compute the
 * positions of storages from rules about data descriptors, which torch.save obeys and this does
 * not, instead of reading them. CRC-32: set for the records generated here; 0 for tensors, because
 * computing it would mean reading them. torch never checks CRCs and writes 0 itself after
 * set_crc32_options(False); `unzip -t` and Python's zipfile report an error when they read such a
 * record.
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

/* All dtypes except the quantised ones, whose tensors consist of more than elements. */
bool pt_holds(enum ckpt_dtype t);
/* Can the file hold this tensor? 0, or ERR_UNSUPPORTED with the reason. */
int pt_check(const struct tensor_info *m, struct ckpt_err *e);

/*
 * The file of these n tensors, whose names differ; the caller releases *ret. Fails with
 * ERR_UNSUPPORTED if pt_check would, EFBIG or ENOMEM.
 */
int pt_layout(const struct tensor_info *m, size_t n, struct vfile *ret, struct ckpt_err *e);

#endif
