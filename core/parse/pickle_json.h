/* SPDX-License-Identifier: Apache-2.0 */
/*
 * pickle_json - values of a pickle as JSON text, the way Python's json.dumps writes them.
 *
 * None, bool, int of any size, float (NaN and Infinity as in Python), str, list and dict are
 * written as they are; a tuple becomes a list. Values that JSON cannot express become an object
 * with a key "__class__":
 *
 *	argparse.Namespace(lr=0.1)      {"__class__": "argparse.Namespace", "lr": 0.1}
 *	a class of dicts or lists       {"__class__": "m.C", "__items__": {"a": 1}}
 *	a call with arguments           {"__class__": "torch.device", "__args__": ["cuda", 0]}
 *	a state that is no dict         {"__class__": "m.C", "__state__": 5}
 *	b"\x00\xff"                     {"__class__": "builtins.bytes", "hex": "00ff"}
 *	a class or function itself      {"__global__": "torch.bfloat16"}
 *	what the pickle machine skipped {"__class__": "?"}
 *
 * Threads: pure.
 */
#ifndef PARSE_PICKLE_JSON_H
#define PARSE_PICKLE_JSON_H

struct buf;
struct ckpt_err;
struct pk_value;

/* Appends the text. Fails if it exceeds ret's ceiling (EFBIG; ENOMEM), or nests deeper than 100
 * levels, as self-referencing values do. */
int pickle_json(const struct pk_value *v, struct buf *ret, struct ckpt_err *e);

/* Appends a dict's key as a name: a string's own text, else JSON: 0, 1.5, true, null, ["a", 1]. */
int pickle_key(const struct pk_value *key, struct buf *ret, struct ckpt_err *e);

#endif
