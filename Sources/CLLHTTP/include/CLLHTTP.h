// Heads and chunked bodies of HTTP/1.x, as llhttp parses them.
//
// llhttp decides what a message says. This file adds what a server needs beyond that: where each field lies in the
// bytes that the caller keeps, and the refusal of forms that other parsers may read in another way (bare line ends,
// folded fields, spaces before a colon, other protocols' versions).
#ifndef CLLHTTP_H
#define CLLHTTP_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

// Offsets are from the first byte of the head, or of the trailers' text.
typedef struct chttp_field {
  uint32_t name, name_length, value, value_length;
} chttp_field;

enum { CHTTP_INLINE_FIELDS = 24 };

// The reasons to refuse a message, beside llhttp's own.
typedef enum chttp_refusal {
  CHTTP_OK = 0,
  CHTTP_MALFORMED,        // llhttp's error, or a form that is refused here; `error` has the name
  CHTTP_UNKNOWN_METHOD,   // a token that llhttp does not know
  CHTTP_VERSION,          // HTTP, and not 1.0 or 1.1
  CHTTP_TRANSFER_CODING,  // codings other than chunked
  CHTTP_NO_MEMORY,
} chttp_refusal;

typedef enum chttp_state { CHTTP_MORE, CHTTP_DONE, CHTTP_BAD } chttp_state;

// A message that is being parsed. All but `fields` is written by the functions below alone.
typedef struct chttp_message {
  uint64_t content_length;
  chttp_field *fields;  // never null; `field_count` of them
  uint32_t field_count, field_capacity;
  uint32_t head_field_count;  // those of the head; the trailers follow
  uint32_t head_length;
  uint32_t target, target_length;
  uint32_t method_length;
  uint32_t host, expect;  // an index of `fields`, plus 1; 0 if there is no such field
  int32_t status;         // of a response
  uint8_t host_count, expect_count, transfer_count;
  uint8_t minor_version;
  uint8_t keeps_alive, has_length, is_chunked, is_upgrade, is_connect, is_head;
  chttp_refusal refusal;
  const char *error;   // never null; a constant, such as "HPE_INVALID_URL"
  char *trailer_text;  // the trailers as they arrived; may be null without any
  uint32_t trailer_length, trailer_capacity;
  chttp_field inline_fields[CHTTP_INLINE_FIELDS];
} chttp_message;

// Returns null if no memory is left.
chttp_message *chttp_create(int is_response);
void chttp_destroy(chttp_message *message);  // may be null
// Makes a message ready for the next head.
void chttp_reset(chttp_message *message);

// Parses a head that begins at `bytes`; `parsed` of its bytes were passed before, at whatever address.
// `CHTTP_DONE`: the head is complete, `head_length` bytes.
chttp_state chttp_parse_head(chttp_message *message, const char *bytes, size_t parsed, size_t count);

// Tells the parser of a response that it has no body (HEAD); before the head.
void chttp_expect_no_body(chttp_message *message);

// Parses the body of a message with chunks. Copies the data of `count` bytes to `into`, which has room for as many,
// and sets `copied` and `consumed`. The trailers, at most `most` bytes, become further `fields`, in `trailer_text`.
// They are checked as a head is, and may have no field that belongs into one.
chttp_state chttp_parse_chunks(chttp_message *message, const char *bytes, size_t count, char *into, size_t most,
                               size_t *copied, size_t *consumed);

// Whether a field of that name says how long a message is, where it goes, or what becomes of its connection: all that
// must be known before the body. Names are compared without case.
int chttp_is_of_head(const char *name, size_t length);

// Whether two texts of that length are equal without the case of ASCII letters, in every locale.
int chttp_equals(const char *bytes, const char *name, size_t length);

// The index of the next field of that name, from `from` on; -1 if there is none. Names are compared without case.
int32_t chttp_find(const chttp_message *message, const char *bytes, const char *name, size_t length, uint32_t from);

// Writes the value of the header `date`, 29 characters, and no zero. Any thread.
void chttp_date(char *into);
// Writes a time, in seconds since 1970, as 29 characters of an HTTP date. Returns 0, and writes nothing, if the year
// has not four digits.
int chttp_format_time(int64_t seconds, char *into);
// Parses an HTTP date; returns 0 if it is none. `text` ends with a zero. The result may be negative.
int chttp_parse_time(const char *text, int64_t *seconds);

#ifdef __cplusplus
}
#endif
#endif
