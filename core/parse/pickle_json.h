/* SPDX-License-Identifier: Apache-2.0 */
/*
 * pickle_json - values of a pickle as JSON text, the way Python's json.dumps writes them.
 *
 * The text is strict JSON. None, bool, int (of any size, with all digits), float, str, list and
 * dict are written as they are; a tuple becomes a list, and a key that is not a string becomes its
 * JSON text: {1: 2} is {"1": 2}. Values that JSON cannot express become an object with one of the
 * keys __class__, __global__ and __cycle__, which a dict never becomes:
 *
 *	float("nan"), float("-inf")     {"__class__": "builtins.float", "value": "-inf"}
 *	b"\x00\xff"                     {"__class__": "builtins.bytes", "hex": "00ff"}
 *	{1, 2}                          {"__class__": "builtins.set", "__items__": [1, 2]}
 *	{1: 2, "1": 3}, {"__class__": 1}
 *					{"__class__": "builtins.dict", "__items__": [[1, 2], ["1", 3]]}
 *	argparse.Namespace(lr=0.1)      {"__class__": "argparse.Namespace", "lr": 0.1}
 *	a class of dicts or lists       {"__class__": "m.C", "__items__": {"a": 1}}
 *	a call with arguments           {"__class__": "torch.device", "__args__": ["cuda", 0]}
 *	a state that is no dict         {"__class__": "m.C", "__state__": 5}
 *	a tensor                        {"__class__": "torch.Tensor", "dtype": "int64", "shape": [2]}
 *	numpy.arange(2)                 {"__class__": "numpy.ndarray", "dtype": "<u1", "shape": [2],
 *					 "hex": "0001"}, in order "C" unless "order": "F" stands there
 *	numpy.float64(0.5)              {"__class__": "numpy.float64", "value": 0.5}
 *	a storage                       {"__class__": "torch.FloatStorage", "size": 6}
 *	a class or function itself      {"__global__": "torch.bfloat16"}
 *	a container inside itself       {"__cycle__": 1}, the one so many levels further out
 *	what the pickle machine skipped {"__class__": "?"}
 *
 * A value that is referred to twice is written twice.
 *
 * Threads: pure.
 */
#ifndef PARSE_PICKLE_JSON_H
#define PARSE_PICKLE_JSON_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct buf;
struct ckpt_err;
struct pk_value;

/* Appends the text. Fails if it exceeds ret's ceiling (EFBIG; ENOMEM), or nests deeper than 100
 * levels. */
int pickle_json(const struct pk_value *v, struct buf *ret, struct ckpt_err *e);
/* The same, of at most *values values, which it counts down: containers may be shared. EFBIG:
 * more. */
int pickle_json_within(const struct pk_value *v, uint64_t *values, struct buf *ret,
		       struct ckpt_err *e);

/* Does a text of pickle_json lack something that the pickle machine skipped? */
bool pickle_json_lacks(const char *text, size_t len);

/* Appends what is left to say about a value without a text: {"__class__": CLASS, "__error__":
 * WHY}. */
void pickle_json_error(const struct pk_value *v, const char *why, struct buf *ret);

/* Appends a dict's key as a name: a string's own text, else JSON: 0, 1.5, true, null, ["a", 1]. */
int pickle_key(const struct pk_value *key, struct buf *ret, struct ckpt_err *e);

#endif
