/* SPDX-License-Identifier: Apache-2.0 */
/*
 * list - intrusive doubly linked lists.
 *
 *	struct handle {
 *		LIST_LINK(struct handle) link;      // must have this name
 *	};
 *	LIST(struct handle) all = { 0 };
 *
 *	LIST_PUSH(&all, h);                         // in front: all.first is the newest
 *	LIST_EACH(x, &all) ...                      // items must not be removed meanwhile
 *	LIST_REMOVE(&all, h);
 *
 * Threads: no shared state.
 */
#ifndef BASE_LIST_H
#define BASE_LIST_H

#include <stddef.h>

#define LIST(type) \
	struct { \
		type *first, *last; \
	}
#define LIST_LINK(type) \
	struct { \
		type *next, *prev; \
	}

#define LIST_PUSH(list, item) \
	do { \
		__auto_type list_ = (list); \
		__auto_type item_ = (item); \
\
		item_->link.prev = NULL; \
		item_->link.next = list_->first; \
		*(list_->first ? &list_->first->link.prev : &list_->last) = item_; \
		list_->first = item_; \
	} while (0)

/* The item must be in the list. Its own link is left unchanged. */
#define LIST_REMOVE(list, item) \
	do { \
		__auto_type list_ = (list); \
		__auto_type item_ = (item); \
\
		*(item_->link.prev ? &item_->link.prev->link.next : &list_->first) = \
			item_->link.next; \
		*(item_->link.next ? &item_->link.next->link.prev : &list_->last) = \
			item_->link.prev; \
	} while (0)

/* The cast is for gcc 10, where the item of a constant list would be constant. */
#define LIST_EACH(item, list) \
	for (__auto_type item = (__typeof__(&*(list)->first))(list)->first; (item); \
	     (item) = (item)->link.next)

#endif
