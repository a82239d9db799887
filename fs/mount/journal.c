/* SPDX-License-Identifier: Apache-2.0 */
#include "mount/journal.h"

#include "base/buf.h"
#include "base/checked.h"
#include "base/cleanup.h"
#include "base/log.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

struct line {
	char *text;
	uint64_t id; /* of the file; 0: none */
	uint64_t times;
	char time[JOURNAL_TIME_MAX]; /* of the last occurrence */
};

struct journal {
	pthread_mutex_t lock;
	struct line lines[JOURNAL_LINES]; /* a ring */
	size_t first, n, bytes;
};

void journal_time(char ret[static JOURNAL_TIME_MAX])
{
	struct timespec now;
	struct tm utc;

	/* The time zone is a file, which a sandbox does not have. */
	(void)clock_gettime(CLOCK_REALTIME, &now);
	if (!gmtime_r(&now.tv_sec, &utc) ||
	    !strftime(ret, JOURNAL_TIME_MAX, "%Y-%m-%dT%H:%M:%SZ", &utc))
		*ret = 0;
}

static struct line *line_at(struct journal *j, size_t i)
{
	return &j->lines[(j->first + i) % JOURNAL_LINES];
}

static void drop_oldest(struct journal *j)
{
	struct line *l = line_at(j, 0);

	j->bytes -= strlen(l->text);
	free(l->text);
	*l = (struct line){ 0 };
	j->first = (j->first + 1) % JOURNAL_LINES;
	j->n--;
}

/* The last line with this text; without one, about this file. NULL: there is none. */
static struct line *find(struct journal *j, uint64_t id, const char *text)
{
	struct line *last = j->n ? line_at(j, j->n - 1) : NULL;

	if (text)
		return last && !strcmp(last->text, text) ? last : NULL;
	for (size_t i = j->n; i-- > 0;)
		if (line_at(j, i)->id == id)
			return line_at(j, i);
	return NULL;
}

/* Takes ownership of text. */
static struct line *add(struct journal *j, uint64_t id, char *text)
{
	size_t len = strlen(text);
	struct line *l;

	while (j->n && (j->n == JOURNAL_LINES || j->bytes + len > JOURNAL_BYTES))
		drop_oldest(j);
	l = line_at(j, j->n++);
	*l = (struct line){ .text = text, .id = id };
	j->bytes += len;
	return l;
}

static void keep(void *arg, enum log_level level, uint64_t id, const char *text)
{
	autofree char *copy = text ? strdup(text) : NULL;
	char time[JOURNAL_TIME_MAX];
	struct journal *j = arg;
	struct line *l;

	if (level >= LOG_LEVEL_DEBUG)
		return;
	journal_time(time);
	SCOPED_LOCK(&j->lock);
	l = find(j, id, text);
	if (!l && copy) /* without memory the message is only in the log */
		l = add(j, id, steal_ptr(&copy));
	if (!l)
		return;
	l->times++;
	memcpy(l->time, time, sizeof(time));
}

struct journal *journal_new(void)
{
	struct journal *j = calloc(1, sizeof(*j));

	if (!j)
		return NULL;
	(void)pthread_mutex_init(&j->lock, NULL);
	log_keep(keep, j);
	return j;
}

void journal_free(struct journal *j)
{
	if (!j)
		return;
	log_keep(NULL, NULL);
	while (j->n)
		drop_oldest(j);
	(void)pthread_mutex_destroy(&j->lock);
	free(j);
}

void journal_text(struct journal *j, size_t lines, struct buf *ret)
{
	SCOPED_LOCK(&j->lock);

	for (size_t i = j->n - min_u64(j->n, lines); i < j->n; i++) {
		const struct line *l = line_at(j, i);

		buf_printf(ret, "%s %s", l->time, l->text);
		if (l->times > 1)
			buf_printf(ret, " (%llu times)", (unsigned long long)l->times);
		buf_str(ret, "\n");
	}
}
