// A line of a report that a signal handler writes: composed in a buffer on its stack, and written by write(2). Every
// function here is async-signal-safe. What does not fit is left out.
#ifndef CCOROUTINE_LINE_H
#define CCOROUTINE_LINE_H

#include "CCoroutineRuntime.h"

#include <errno.h>
#include <poll.h>
#include <string.h>
#include <unistd.h>

// A write of this size into a pipe is not mixed with others (PIPE_BUF).
typedef struct cco_line {
  char text[4096];
  size_t length;
} cco_line;

static inline void cco_line_add_bytes(cco_line *l, const char *bytes, size_t count) {
  size_t room = sizeof l->text - 1 - l->length;
  if (count > room) count = room;
  memcpy(l->text + l->length, bytes, count);
  l->length += count;
}
static inline void cco_line_add(cco_line *l, const char *text) { cco_line_add_bytes(l, text, strlen(text)); }
// The Swift layer's names are already escaped, and stay as they are. So quotation marks are not escaped again.
static inline void cco_line_add_escaped(cco_line *l, const char *text, size_t count, size_t most) {
  size_t room = sizeof l->text - 1 - l->length;
  bool is_whole;
  l->length += cco_escape(l->text + l->length, most < room ? most : room, text, count, false, &is_whole);
}
static inline void cco_line_add_in_base(cco_line *l, uint64_t number, unsigned base) {
  char digits[20];
  size_t first = sizeof digits;
  do digits[--first] = "0123456789abcdef"[number % base];
  while (number /= base);
  cco_line_add_bytes(l, digits + first, sizeof digits - first);
}
static inline void cco_line_add_number(cco_line *l, uint64_t number) { cco_line_add_in_base(l, number, 10); }
static inline void cco_line_add_hexadecimal(cco_line *l, uint64_t number) {
  cco_line_add(l, "0x");
  cco_line_add_in_base(l, number, 16);
}

// `coroutine "name" (id 7)`
static inline void cco_line_add_coroutine(cco_line *l, const cco_label *label) {
  cco_line_add(l, "coroutine ");
  if (label->name && label->name[0]) {
    cco_line_add(l, "\"");
    cco_line_add_escaped(l, label->name, strnlen(label->name, 1024), 200);
    cco_line_add(l, "\" ");
  }
  cco_line_add(l, "(id ");
  cco_line_add_number(l, label->id);
  cco_line_add(l, ")");
}

// `; launched at File.swift:12`
static inline void cco_line_add_launch_site(cco_line *l, const cco_label *label) {
  if (label->file == NULL || label->file_length == 0) return;
  cco_line_add(l, "; launched at ");
  cco_line_add_escaped(l, label->file, label->file_length, 300);
  cco_line_add(l, ":");
  cco_line_add_number(l, label->line);
}

static inline void cco_line_write(cco_line *l) {
  l->text[l->length++] = '\n';
  // A pipe that nothing reads must not keep a process from its end, and one whose reader has gone must not end it by
  // SIGPIPE in place of its own signal.
  struct pollfd error = {STDERR_FILENO, POLLOUT, 0};
  while (poll(&error, 1, 1000) < 0 && errno == EINTR) {}
  if (error.revents != POLLOUT) return;
  const char *rest = l->text;
  while (l->length > 0) {
    ssize_t written = write(STDERR_FILENO, rest, l->length);
    if (written <= 0) break;
    rest += written;
    l->length -= (size_t)written;
  }
}

#endif
