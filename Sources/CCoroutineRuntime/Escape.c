// Escapes users' names and texts for a line of a report. A name may come from a peer: a newline would forge lines of a
// dump or a log, ESC would control the terminal, and a direction mark would reorder the text on the screen. These
// characters are written as in a Swift literal.
//
//   \0 \t \n \r                      these control characters
//   \u{1B}                           other control characters (C0, DEL, C1), line and paragraph separators (U+2028,
//                                    U+2029), and marks that change the direction of writing
//   \xFF                             a byte that is no UTF-8
//   \" and \\                        only between quotation marks, so that no text can forge the end of a name
//
// Every such text passes through this one function. It is async-signal-safe, because the overflow report uses it.
#include "CCoroutineRuntime.h"

#include <string.h>

// Returns the character at the beginning of `text`, and sets its length in bytes; -1 and 1 for a byte that begins none.
static int32_t decode(const unsigned char *text, size_t count, size_t *length) {
  *length = 1;
  unsigned char first = text[0];
  if (first < 0x80) return first;
  size_t more = 0;
  if (first >= 0xC2 && first <= 0xDF) more = 1;
  if (first >= 0xE0 && first <= 0xEF) more = 2;
  if (first >= 0xF0 && first <= 0xF4) more = 3;
  if (more == 0 || more >= count) return -1;
  int32_t code = first & (0x3F >> more);
  for (size_t i = 1; i <= more; i++) {
    if ((text[i] & 0xC0) != 0x80) return -1;
    code = code << 6 | (text[i] & 0x3F);
  }
  // Overlong, a surrogate, or beyond the last code point.
  if ((more == 2 && code < 0x800) || (more == 3 && (code < 0x10000 || code > 0x10FFFF))) return -1;
  if (code >= 0xD800 && code <= 0xDFFF) return -1;
  *length = more + 1;
  return code;
}

static bool changes_line_or_direction(int32_t code) {
  return code < 0x20 || (code >= 0x7F && code <= 0x9F) || (code >= 0x2028 && code <= 0x202E) || code == 0x061C ||
         code == 0x200E || code == 0x200F || (code >= 0x2066 && code <= 0x206F);
}

static size_t add_hexadecimal(char *out, uint32_t number, size_t least) {
  size_t digits = least;
  while (digits < 8 && number >> (4 * digits)) digits++;
  for (size_t i = 0; i < digits; i++) out[i] = "0123456789ABCDEF"[number >> (4 * (digits - 1 - i)) & 0xF];
  return digits;
}

// Writes one character, escaped if necessary, in at most 12 bytes; returns their number.
static size_t write_one(char *out, int32_t code, const char *text, size_t length, bool is_quoted) {
  const char *plain = "0\0t\tn\nr\r";
  for (size_t i = 0; i < 8; i += 2) {
    if (code == plain[i + 1]) {
      out[0] = '\\';
      out[1] = plain[i];
      return 2;
    }
  }
  if (is_quoted && (code == '"' || code == '\\')) {
    out[0] = '\\';
    out[1] = (char)code;
    return 2;
  }
  if (code < 0) {
    memcpy(out, "\\x", 2);
    return 2 + add_hexadecimal(out + 2, (unsigned char)text[0], 2);
  }
  if (changes_line_or_direction(code)) {
    memcpy(out, "\\u{", 3);
    size_t end = 3 + add_hexadecimal(out + 3, (uint32_t)code, 2);
    out[end] = '}';
    return end + 1;
  }
  memcpy(out, text, length);
  return length;
}

size_t cco_escape(char *out, size_t room, const char *text, size_t count, bool is_quoted, bool *is_whole) {
  // `sure` is the length up to which the mark `…` would still fit behind the text.
  static const char missing[] = "…";
  size_t written = 0, sure = 0, next = 0;
  *is_whole = true;
  while (next < count) {
    char one[16];
    size_t length = 0;
    int32_t code = decode((const unsigned char *)text + next, count - next, &length);
    size_t size = write_one(one, code, text + next, length, is_quoted);
    if (written + size > room) {
      *is_whole = false;
      if (sizeof missing - 1 > room) return 0;
      memcpy(out + sure, missing, sizeof missing - 1);
      return sure + sizeof missing - 1;
    }
    memcpy(out + written, one, size);
    written += size;
    next += length;
    if (written + sizeof missing - 1 <= room) sure = written;
  }
  return written;
}
