// A line of a report that a signal handler writes: composed in a buffer on its stack, and written by write(2). Every
// function here is async-signal-safe. What does not fit is left out.
#ifndef CCOROUTINE_LINE_H
#define CCOROUTINE_LINE_H

#include "Internal.h"

#include <string.h>
#include <unistd.h>

// A write of this size into a pipe is not mixed with others (PIPE_BUF).
typedef struct line {
  char text[4096];
  size_t length;
} line;

static inline void add_bytes(line *l, const char *bytes, size_t count) {
  size_t room = sizeof l->text - 1 - l->length;
  if (count > room) count = room;
  memcpy(l->text + l->length, bytes, count);
  l->length += count;
}
static inline void add(line *l, const char *text) { add_bytes(l, text, strlen(text)); }
// The Swift layer's names are already escaped, and stay as they are. So quotation marks are not escaped again.
static inline void add_escaped(line *l, const char *text, size_t count, size_t most) {
  size_t room = sizeof l->text - 1 - l->length;
  bool is_whole;
  l->length += cco_escape(l->text + l->length, most < room ? most : room, text, count, false, &is_whole);
}
static inline void add_in_base(line *l, uint64_t number, unsigned base) {
  char digits[20];
  size_t first = sizeof digits;
  do digits[--first] = "0123456789abcdef"[number % base];
  while (number /= base);
  add_bytes(l, digits + first, sizeof digits - first);
}
static inline void add_number(line *l, uint64_t number) { add_in_base(l, number, 10); }
static inline void add_hexadecimal(line *l, uint64_t number) {
  add(l, "0x");
  add_in_base(l, number, 16);
}

// `coroutine "name" (id 7)`
static inline void add_coroutine(line *l, const cco_label *label) {
  add(l, "coroutine ");
  if (label->name && label->name[0]) {
    add(l, "\"");
    add_escaped(l, label->name, strnlen(label->name, 1024), 200);
    add(l, "\" ");
  }
  add(l, "(id ");
  add_number(l, label->id);
  add(l, ")");
}

// `; launched at File.swift:12`
static inline void add_launch_site(line *l, const cco_label *label) {
  if (label->file == NULL || label->file_length == 0) return;
  add(l, "; launched at ");
  add_escaped(l, label->file, label->file_length, 300);
  add(l, ":");
  add_number(l, label->line);
}

static inline void write_line(line *l) {
  l->text[l->length++] = '\n';
  const char *rest = l->text;
  while (l->length > 0) {
    ssize_t written = write(STDERR_FILENO, rest, l->length);
    if (written <= 0) break;
    rest += written;
    l->length -= (size_t)written;
  }
}

#endif
