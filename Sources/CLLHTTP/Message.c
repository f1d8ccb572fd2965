// The adapter of llhttp.
//
// A head is parsed in pieces, as it arrives. llhttp reports pieces of names and values by their addresses; they are
// kept as offsets from the head's first byte, because the caller may move the bytes. When the head is complete, the
// gaps between the reported pieces are checked: they may contain what the standard has there, and nothing else. The
// trailers are kept as they arrive, and checked in the same way.
//
// Smuggling. A message that two parsers read in two ways can hide a request from a proxy. So no leniency of llhttp is
// switched on: it refuses several lengths, and a Content-Length beside Transfer-Encoding. `check_fields` refuses what
// is left in a head and in trailers: bare line ends, folded fields, spaces before a colon, a second transfer coding;
// and in trailers what decides on the message or its way, which must be known before the body.
#ifdef CO_HTTP
#include <stdlib.h>
#include <string.h>

#include "CLLHTTP.h"
#include "llhttp.h"

enum part { PART_NONE, PART_NAME, PART_COLON, PART_VALUE };

typedef struct parser {
  chttp_message message;  // first, so that the addresses are the same
  llhttp_t llhttp;
  const char *origin;  // of the offsets, while llhttp runs: of the head, or of the trailers that this call brings
  char *into;
  size_t copied;
  uint8_t part;
  uint8_t in_head, in_trailers, is_complete, skips_body, has_line;
} parser;

static parser *of(llhttp_t *llhttp) { return (parser *)llhttp->data; }

static int refuse(parser *p, chttp_refusal refusal, const char *error) {
  p->message.refusal = refusal;
  p->message.error = error;
  return -1;
}

static int on_url(llhttp_t *llhttp, const char *at, size_t length) {
  parser *p = of(llhttp);
  if (p->message.target_length == 0) p->message.target = (uint32_t)(at - p->origin);
  p->message.target_length += (uint32_t)length;
  return 0;
}

// The offset of a piece: in the head, or in the trailers, of which earlier calls have brought `trailer_length` bytes.
static uint32_t offset_of(const parser *p, const char *at) {
  return (uint32_t)(at - p->origin) + (p->in_head ? 0 : p->message.trailer_length);
}

static chttp_field *add_field(parser *p) {
  chttp_message *m = &p->message;
  if (m->field_count == m->field_capacity) {
    uint32_t capacity = m->field_capacity * 2;
    int is_inline = m->fields == m->inline_fields;
    chttp_field *fields = realloc(is_inline ? NULL : m->fields, capacity * sizeof(chttp_field));
    if (fields == NULL) return NULL;
    if (is_inline) memcpy(fields, m->inline_fields, sizeof m->inline_fields);
    m->fields = fields;
    m->field_capacity = capacity;
  }
  chttp_field *field = &m->fields[m->field_count++];
  memset(field, 0, sizeof *field);
  return field;
}

static int on_name(llhttp_t *llhttp, const char *at, size_t length) {
  parser *p = of(llhttp);
  if (p->part == PART_NAME) {
    p->message.fields[p->message.field_count - 1].name_length += (uint32_t)length;
    return 0;
  }
  chttp_field *field = add_field(p);
  if (field == NULL) return refuse(p, CHTTP_NO_MEMORY, "NO_MEMORY");
  field->name = offset_of(p, at);
  field->name_length = (uint32_t)length;
  p->part = PART_NAME;
  return 0;
}

static int on_value(llhttp_t *llhttp, const char *at, size_t length) {
  parser *p = of(llhttp);
  uint32_t offset = offset_of(p, at);
  chttp_field *field = &p->message.fields[p->message.field_count - 1];
  // Pieces that do not touch are parts of a folded field; the check of the gaps refuses it.
  if (p->part != PART_VALUE || field->value_length == 0) {
    field->value = offset;
    field->value_length = 0;
  }
  field->value_length = offset + (uint32_t)length - field->value;
  p->part = PART_VALUE;
  return 0;
}

static int on_name_complete(llhttp_t *llhttp) {
  of(llhttp)->part = PART_COLON;
  return 0;
}

static int on_head(llhttp_t *llhttp) {
  parser *p = of(llhttp);
  chttp_message *m = &p->message;
  m->keeps_alive = (uint8_t)llhttp_should_keep_alive(llhttp);
  m->has_length = (llhttp->flags & F_CONTENT_LENGTH) != 0;
  m->is_chunked = (llhttp->flags & F_CHUNKED) != 0;
  m->content_length = llhttp->content_length;
  m->is_upgrade = (llhttp->flags & F_UPGRADE) != 0 && (llhttp->flags & F_CONNECTION_UPGRADE) != 0;
  m->minor_version = llhttp->http_minor;
  m->is_connect = llhttp->type == HTTP_REQUEST && llhttp->method == HTTP_CONNECT;
  m->is_head = llhttp->type == HTTP_REQUEST && llhttp->method == HTTP_HEAD;
  m->status = llhttp->status_code;
  m->head_field_count = m->field_count;
  p->in_head = 0;
  p->part = PART_NONE;
  return HPE_PAUSED;
}

static int on_body(llhttp_t *llhttp, const char *at, size_t length) {
  parser *p = of(llhttp);
  memmove(p->into + p->copied, at, length);
  p->copied += length;
  return 0;
}

// llhttp tells no address here, and stops behind the line instead: the trailers begin there.
static int on_chunk(llhttp_t *llhttp) {
  if (llhttp->content_length > 0) return 0;
  of(llhttp)->in_trailers = 1;
  return HPE_PAUSED;
}

static int on_complete(llhttp_t *llhttp) {
  of(llhttp)->is_complete = 1;
  return HPE_PAUSED;
}

// Constant after its initialiser.
static const llhttp_settings_t settings = {
  .on_url = on_url,
  .on_header_field = on_name,
  .on_header_field_complete = on_name_complete,
  .on_header_value = on_value,
  .on_headers_complete = on_head,
  .on_chunk_header = on_chunk,
  .on_body = on_body,
  .on_message_complete = on_complete,
};

chttp_message *chttp_create(int is_response) {
  parser *p = malloc(sizeof *p);
  if (p == NULL) return NULL;
  p->message.fields = p->message.inline_fields;
  p->message.field_capacity = CHTTP_INLINE_FIELDS;
  p->message.trailer_text = NULL;
  p->llhttp.type = is_response ? HTTP_RESPONSE : HTTP_REQUEST;
  chttp_reset(&p->message);
  return &p->message;
}

void chttp_destroy(chttp_message *message) {
  if (message == NULL) return;
  if (message->fields != message->inline_fields) free(message->fields);
  free(message->trailer_text);
  free(message);
}

void chttp_reset(chttp_message *message) {
  parser *p = (parser *)message;
  chttp_field *fields = message->fields;
  uint32_t capacity = message->field_capacity;
  free(message->trailer_text);
  memset(message, 0, offsetof(chttp_message, inline_fields));
  message->fields = fields;
  message->field_capacity = capacity;
  message->error = "";
  llhttp_init(&p->llhttp, (llhttp_type_t)p->llhttp.type, &settings);
  p->llhttp.data = p;
  p->part = PART_NONE;
  p->in_head = 1;
  p->in_trailers = 0;
  p->is_complete = 0;
  p->skips_body = 0;
  p->has_line = 0;
}

void chttp_expect_no_body(chttp_message *message) { ((parser *)message)->skips_body = 1; }

// MARK: The check of a complete head, and of complete trailers

static int is_token(unsigned char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
         (c != 0 && strchr("!#$%&'*+-.^_`|~", c) != NULL);
}

static unsigned char without_case(unsigned char c) { return c >= 'A' && c <= 'Z' ? c + ('a' - 'A') : c; }

// Not strncasecmp: it follows the locale of the process, and in a Turkish one "I" is no "i".
int chttp_equals(const char *bytes, const char *name, size_t length) {
  for (size_t i = 0; i < length; i++) {
    if (without_case((unsigned char)bytes[i]) != without_case((unsigned char)name[i])) return 0;
  }
  return 1;
}

static int equals(const char *bytes, uint32_t length, const char *name) {
  return strlen(name) == length && chttp_equals(bytes, name, length);
}

static chttp_refusal bad(chttp_message *m, const char *error) {
  m->error = error;
  return CHTTP_MALFORMED;
}

// Checks the first line; returns the offset of the first field, or 0 and sets the refusal.
static uint32_t check_request_line(chttp_message *m, const char *bytes, size_t count) {
  uint32_t i = 0;
  while (is_token((unsigned char)bytes[i])) i++;
  m->method_length = i;
  uint32_t end = m->target + m->target_length;
  if (i == 0 || bytes[i] != ' ' || m->target != i + 1 || m->target_length == 0) {
    m->refusal = bad(m, "INVALID_REQUEST_LINE");
    return 0;
  }
  for (i = m->target; i < end; i++) {
    if (bytes[i] <= 0x20 || bytes[i] >= 0x7f) {
      m->refusal = bad(m, "INVALID_TARGET");
      return 0;
    }
  }
  if (count < end + 11 || memcmp(bytes + end, " HTTP/", 6) != 0 || memcmp(bytes + end + 9, "\r\n", 2) != 0) {
    m->refusal = bad(m, "INVALID_VERSION");
    return 0;
  }
  if (bytes[end + 6] != '1' || (bytes[end + 8] != '0' && bytes[end + 8] != '1')) {
    m->refusal = CHTTP_VERSION;
    m->error = "INVALID_VERSION";
    return 0;
  }
  return end + 11;
}

static uint32_t check_status_line(chttp_message *m, const char *bytes) {
  const char *end = memchr(bytes, '\n', m->head_length);
  if (end == NULL || end - bytes < 13 || end[-1] != '\r' || memcmp(bytes, "HTTP/1.", 7) != 0) {
    m->refusal = bad(m, "INVALID_STATUS_LINE");
    return 0;
  }
  return (uint32_t)(end + 1 - bytes);
}

static void note(chttp_message *m, const char *bytes, uint32_t index) {
  const chttp_field *f = &m->fields[index];
  const char *name = bytes + f->name;
  switch (f->name_length) {
  case 4:
    if (equals(name, 4, "host") && m->host_count++ == 0) m->host = index + 1;
    break;
  case 6:
    if (equals(name, 6, "expect") && m->expect_count++ == 0) m->expect = index + 1;
    break;
  case 17:
    if (!equals(name, 17, "transfer-encoding")) break;
    m->transfer_count++;
    if (!equals(bytes + f->value, f->value_length, "chunked")) m->refusal = CHTTP_TRANSFER_CODING;
    break;
  default: break;
  }
}

static int is_digit(char c) { return c >= '0' && c <= '9'; }

static int is_space(char c) { return c == ' ' || c == '\t'; }

int chttp_is_of_head(const char *name, size_t length) {
  static const char *const names[] = {
    "content-length", "transfer-encoding", "trailer", "host", "connection", "keep-alive", "upgrade",
  };
  for (size_t i = 0; i < sizeof names / sizeof *names; i++)
    if (equals(name, (uint32_t)length, names[i])) return 1;
  return 0;
}

// Checks the fields from the index `first` on, which begin at the offset `at` of `length` bytes, and what ends them.
static void check_fields(chttp_message *m, const char *bytes, uint32_t at, uint32_t length, uint32_t first) {
  int is_trailer = first > 0;  // a head with chunks has a field
  for (uint32_t i = first; i < m->field_count; i++) {
    chttp_field *f = &m->fields[i];
    if (f->name != at || f->name_length == 0 || bytes[at + f->name_length] != ':') {
      m->refusal = bad(m, "INVALID_FIELD_NAME");
      return;
    }
    at += f->name_length + 1;
    while (is_space(bytes[at])) at++;
    // llhttp reports no value, or some of the spaces, if there is nothing else.
    const char *start = bytes + at;
    const char *end = memchr(start, '\n', length - at);
    if (end == NULL || end == bytes || end[-1] != '\r') {
      m->refusal = bad(m, "INVALID_LINE_END");
      return;
    }
    at = (uint32_t)(end + 1 - bytes);
    end--;
    while (end > start && is_space(end[-1])) end--;
    if (end < start) end = start;
    if (f->value_length > 0 && f->value + f->value_length > (uint32_t)(at - 2)) {
      m->refusal = bad(m, "FOLDED_FIELD");
      return;
    }
    f->value = (uint32_t)(start - bytes);
    f->value_length = (uint32_t)(end - start);
    for (const char *c = start; c < end; c++) {
      if (((unsigned char)*c < 0x20 && *c != '\t') || *c == 0x7f) {
        m->refusal = bad(m, "INVALID_FIELD_VALUE");
        return;
      }
    }
    if (!is_trailer) {
      note(m, bytes, i);
    } else if (chttp_is_of_head(bytes + f->name, f->name_length)) {
      m->refusal = bad(m, "FIELD_OF_HEAD_IN_TRAILERS");
      return;
    }
  }
  if (at + 2 != length || memcmp(bytes + at, "\r\n", 2) != 0) m->refusal = bad(m, "INVALID_LINE_END");
}

static void check_head(chttp_message *m, const char *bytes, int is_request) {
  uint32_t at = is_request ? check_request_line(m, bytes, m->head_length) : check_status_line(m, bytes);
  if (at == 0) return;
  check_fields(m, bytes, at, m->head_length, 0);
  if (m->refusal == CHTTP_OK && m->transfer_count > 1) m->refusal = CHTTP_TRANSFER_CODING;
  if (m->refusal != CHTTP_TRANSFER_CODING) return;
  // Where chunked is not the last coding, nobody knows where the body ends.
  m->error = "UNSUPPORTED_TRANSFER_CODING";
  if (!m->is_chunked) m->refusal = CHTTP_MALFORMED;
}

static chttp_state fail(parser *p, const char *bytes, size_t count, llhttp_errno_t code) {
  chttp_message *m = &p->message;
  if (m->refusal != CHTTP_OK) return CHTTP_BAD;
  m->refusal = CHTTP_MALFORMED;
  m->error = llhttp_errno_name(code);
  if (code == HPE_INVALID_VERSION) {
    m->refusal = CHTTP_VERSION;
    const char *line = memchr(bytes, '\n', count);
    const char *name = memmem(bytes, line == NULL ? count : (size_t)(line - bytes), " HTTP/", 6);
    size_t rest = name == NULL ? 0 : (size_t)(bytes + count - name);
    int is_served = rest >= 9 && name[6] == '1' && (name[8] == '0' || name[8] == '1');
    int has_form = rest >= 9 && is_digit(name[6]) && name[7] == '.' && is_digit(name[8]);
    if (!has_form || is_served || (rest > 9 && name[9] != '\r')) m->refusal = CHTTP_MALFORMED;
  }
  if (code == HPE_INVALID_METHOD) {
    size_t i = 0;
    while (i < count && is_token((unsigned char)bytes[i])) i++;
    if (i > 0 && (i == count || bytes[i] == ' ')) m->refusal = CHTTP_UNKNOWN_METHOD;
  }
  return CHTTP_BAD;
}

chttp_state chttp_parse_head(chttp_message *message, const char *bytes, size_t parsed, size_t count) {
  parser *p = (parser *)message;
  p->origin = bytes;
  llhttp_errno_t code = llhttp_execute(&p->llhttp, bytes + parsed, count - parsed);
  if (code == HPE_OK) {
    // A first line that will be refused is refused now: HTTP/0.9 has nothing behind it.
    if (p->has_line || p->llhttp.type != HTTP_REQUEST || memchr(bytes, '\n', count) == NULL) return CHTTP_MORE;
    p->has_line = 1;
    return check_request_line(message, bytes, count) == 0 ? CHTTP_BAD : CHTTP_MORE;
  }
  if (code != HPE_PAUSED || p->in_head) return fail(p, bytes, count, code);
  // llhttp stops at the last line end, or behind it. Behind it, a line feed is the body's.
  size_t length = (size_t)(llhttp_get_error_pos(&p->llhttp) - bytes);
  if (length > 0 && length < count && bytes[length] == '\n' && bytes[length - 1] != '\n') length++;
  message->head_length = (uint32_t)length;
  check_head(message, bytes, p->llhttp.type == HTTP_REQUEST);
  if (message->refusal != CHTTP_OK) return CHTTP_BAD;
  if (p->skips_body) p->llhttp.flags |= F_SKIPBODY;
  llhttp_resume(&p->llhttp);
  return CHTTP_DONE;
}

static int keep_trailers(parser *p, const char *bytes, size_t count, size_t most) {
  chttp_message *m = &p->message;
  if (m->trailer_length + count > most) return refuse(p, CHTTP_MALFORMED, "TRAILERS_TOO_LARGE");
  if (m->trailer_length + count > m->trailer_capacity) {
    uint32_t capacity = (m->trailer_length + (uint32_t)count) * 2 + 64;
    char *text = realloc(m->trailer_text, capacity);
    if (text == NULL) return refuse(p, CHTTP_NO_MEMORY, "NO_MEMORY");
    m->trailer_text = text;
    m->trailer_capacity = capacity;
  }
  if (count > 0) memcpy(m->trailer_text + m->trailer_length, bytes, count);
  m->trailer_length += (uint32_t)count;
  return 0;
}

// Keeps the bytes of the trailers that this call has brought, and checks the trailers when they are complete.
static chttp_state end_trailers(parser *p, const char *end, size_t most) {
  chttp_message *m = &p->message;
  size_t count = (size_t)(end - p->origin);
  // Most messages have none, and need no memory for them.
  int has_none = p->is_complete && m->trailer_length == 0 && count == 2 && memcmp(p->origin, "\r\n", 2) == 0;
  if (has_none) return CHTTP_DONE;
  if (keep_trailers(p, p->origin, count, most) != 0) return CHTTP_BAD;
  if (!p->is_complete) return CHTTP_MORE;
  check_fields(m, m->trailer_text, 0, m->trailer_length, m->head_field_count);
  return m->refusal == CHTTP_OK ? CHTTP_DONE : CHTTP_BAD;
}

chttp_state chttp_parse_chunks(chttp_message *message, const char *bytes, size_t count, char *into, size_t most,
                               size_t *copied, size_t *consumed) {
  parser *p = (parser *)message;
  p->into = into;
  p->copied = 0;
  p->origin = bytes;
  int was_in_trailers = p->in_trailers;
  llhttp_errno_t code = llhttp_execute(&p->llhttp, bytes, count);
  if (code == HPE_PAUSED && p->in_trailers != was_in_trailers) {
    p->origin = llhttp_get_error_pos(&p->llhttp);
    llhttp_resume(&p->llhttp);
    code = llhttp_execute(&p->llhttp, p->origin, count - (size_t)(p->origin - bytes));
  }
  *copied = p->copied;
  *consumed = count;
  if (code == HPE_PAUSED && p->is_complete) {
    *consumed = (size_t)(llhttp_get_error_pos(&p->llhttp) - bytes);
  } else if (code != HPE_OK) {
    if (message->refusal == CHTTP_OK) {
      message->refusal = CHTTP_MALFORMED;
      message->error = llhttp_errno_name(code);
    }
    return CHTTP_BAD;
  }
  return p->in_trailers ? end_trailers(p, bytes + *consumed, most) : CHTTP_MORE;
}

int32_t chttp_find(const chttp_message *message, const char *bytes, const char *name, size_t length, uint32_t from) {
  for (uint32_t i = from; i < message->head_field_count; i++) {
    const chttp_field *f = &message->fields[i];
    if (f->name_length == length && chttp_equals(bytes + f->name, name, length)) return (int32_t)i;
  }
  return -1;
}
#endif
