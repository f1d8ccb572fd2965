// What an overflow's handler says. Async-signal-safe: the line is put together in a buffer on the alternate stack and
// leaves by write(2).
#include "Internal.h"

#include <string.h>
#include <unistd.h>

typedef struct line {
  char text[1024];
  size_t length;
} line;

static void add_bytes(line *l, const char *bytes, size_t count) {
  size_t room = sizeof l->text - 1 - l->length;
  if (count > room) count = room;
  memcpy(l->text + l->length, bytes, count);
  l->length += count;
}
static void add(line *l, const char *text) { add_bytes(l, text, strlen(text)); }
static void add_number(line *l, uint64_t number) {
  char digits[20];
  size_t first = sizeof digits;
  do digits[--first] = (char)('0' + number % 10);
  while (number /= 10);
  add_bytes(l, digits + first, sizeof digits - first);
}
static void add_size(line *l, size_t bytes) {
  bool mebi = bytes >= (size_t)1 << 20;
  add_number(l, bytes >> (mebi ? 20 : 10));
  add(l, mebi ? " MiB" : " KiB");
}

void cco_say_last_words(const cco_context *context) {
  static const size_t sizes[CCO_STACK_CLASSES] = {16u << 10, 64u << 10, 256u << 10, 512u << 10,
                                                  1u << 20,  4u << 20,  CCO_LARGEST_STACK};
  static const cco_label nobody = {.id = 0};
  const cco_label *label = context->label ? context->label : &nobody;
  uint32_t size_class = context->size_class % CCO_STACK_CLASSES;
  line l = {.length = 0};
  add(&l, "coroutine ");
  if (label->name && label->name[0]) {
    size_t length = 0;
    while (length < 200 && label->name[length]) length++;
    add(&l, "\"");
    add_bytes(&l, label->name, length);
    add(&l, "\" ");
  }
  add(&l, "(id ");
  add_number(&l, label->id);
  add(&l, ") overflowed its stack of ");
  add_size(&l, sizes[size_class]);
  if (label->file && label->file_length > 0) {
    add(&l, "; launched at ");
    add_bytes(&l, label->file, label->file_length < 300 ? label->file_length : 300);
    add(&l, ":");
    add_number(&l, label->line);
  }
  if (size_class + 1 < CCO_STACK_CLASSES) {
    unsigned shift = 0;
    while (((size_t)1 << shift) < sizes[size_class + 1]) shift++;
    add(&l, ". Give it a larger one: co_launch(stack: .bytes(1 << ");
    add_number(&l, shift);
    add(&l, ")).");
  } else {
    add(&l, ". No larger stack exists: its recursion has no end, or keeps too much in each frame.");
  }
  l.text[l.length++] = '\n';
  const char *rest = l.text;
  while (l.length > 0) {
    ssize_t written = write(STDERR_FILENO, rest, l.length);
    if (written <= 0) break;
    rest += written;
    l.length -= (size_t)written;
  }
}
