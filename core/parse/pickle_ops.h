/* SPDX-License-Identifier: Apache-2.0 */
/*
 * pickle_ops - the opcodes of pickles that hold data, protocols 2 to 5; names as in CPython's
 * pickletools. INT and OBJ are in Python 2's pickles of protocol 2: an int that needs more than 32
 * bits, and an instance of an old-style class.
 */
#ifndef PARSE_PICKLE_OPS_H
#define PARSE_PICKLE_OPS_H

enum pk_op {
	OP_MARK = '(',
	OP_STOP = '.',
	OP_POP = '0',
	OP_POP_MARK = '1',
	OP_DUP = '2',
	OP_INT = 'I',
	OP_NONE = 'N',
	OP_BININT = 'J',
	OP_BININT1 = 'K',
	OP_BININT2 = 'M',
	OP_BINPERSID = 'Q',
	OP_REDUCE = 'R',
	OP_BINSTRING = 'T',
	OP_SHORT_BINSTRING = 'U',
	OP_BINUNICODE = 'X',
	OP_APPEND = 'a',
	OP_BUILD = 'b',
	OP_GLOBAL = 'c',
	OP_DICT = 'd',
	OP_APPENDS = 'e',
	OP_BINGET = 'h',
	OP_LONG_BINGET = 'j',
	OP_LIST = 'l',
	OP_OBJ = 'o',
	OP_BINPUT = 'q',
	OP_LONG_BINPUT = 'r',
	OP_SETITEM = 's',
	OP_TUPLE = 't',
	OP_SETITEMS = 'u',
	OP_EMPTY_DICT = '}',
	OP_EMPTY_LIST = ']',
	OP_EMPTY_TUPLE = ')',
	OP_BINFLOAT = 'G',
	OP_BINBYTES = 'B',
	OP_SHORT_BINBYTES = 'C',
	OP_PROTO = 0x80,
	OP_NEWOBJ = 0x81,
	OP_TUPLE1 = 0x85,
	OP_TUPLE2 = 0x86,
	OP_TUPLE3 = 0x87,
	OP_NEWTRUE = 0x88,
	OP_NEWFALSE = 0x89,
	OP_LONG1 = 0x8a,
	OP_LONG4 = 0x8b,
	OP_SHORT_BINUNICODE = 0x8c,
	OP_BINUNICODE8 = 0x8d,
	OP_BINBYTES8 = 0x8e,
	OP_EMPTY_SET = 0x8f,
	OP_ADDITEMS = 0x90,
	OP_FROZENSET = 0x91,
	OP_NEWOBJ_EX = 0x92,
	OP_STACK_GLOBAL = 0x93,
	OP_MEMOIZE = 0x94,
	OP_FRAME = 0x95,
	OP_BYTEARRAY8 = 0x96,
};

#endif
