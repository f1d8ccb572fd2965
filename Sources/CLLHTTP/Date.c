// Dates of HTTP, by the C library. In the C locale whatever the program's is, because a date has English names.
#ifdef CO_HTTP
#include <locale.h>
#include <string.h>
#include <time.h>

#include "CLLHTTP.h"

static locale_t c_locale(void) {
  // Written once, by the first thread that exchanges it.
  static locale_t locale;
  locale_t known = __atomic_load_n(&locale, __ATOMIC_ACQUIRE);
  if (known != (locale_t)0) return known;
  locale_t made = newlocale(LC_ALL_MASK, "C", (locale_t)0);
  if (!__atomic_compare_exchange_n(&locale, &known, made, 0, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE)) {
    freelocale(made);
    return known;
  }
  return made;
}

int chttp_format_time(int64_t seconds, char *into) {
  char text[64];
  struct tm parts;
  time_t time = (time_t)seconds;
  // A file may have any time. Of most there is no year, or one with more digits than a date has.
  if (gmtime_r(&time, &parts) == NULL || parts.tm_year < 1000 - 1900 || parts.tm_year > 9999 - 1900) return 0;
  if (strftime_l(text, sizeof text, "%a, %d %b %Y %H:%M:%S GMT", &parts, c_locale()) != 29) return 0;
  memcpy(into, text, 29);
  return 1;
}

void chttp_date(char *into) {
  // Each thread formats once a second. No switch of coroutines lies between the accesses.
  static _Thread_local time_t second = -1;
  static _Thread_local char text[29];
  struct timespec now;
  clock_gettime(CLOCK_REALTIME_COARSE, &now);
  if (now.tv_sec != second) {
    // A clock that has no date is wrong, and the field is of fixed size.
    if (!chttp_format_time((int64_t)now.tv_sec, text)) chttp_format_time(0, text);
    second = now.tv_sec;
  }
  memcpy(into, text, sizeof text);
}

int chttp_parse_time(const char *text, int64_t *seconds) {
  // The form of today, and the two old ones that a recipient must accept (RFC 9110, 5.6.7).
  static const char *const forms[] = {"%a, %d %b %Y %H:%M:%S GMT", "%A, %d-%b-%y %H:%M:%S GMT", "%a %b %e %H:%M:%S %Y"};
  for (int i = 0; i < 3; i++) {
    struct tm parts;
    memset(&parts, 0, sizeof parts);
    const char *end = strptime_l(text, forms[i], &parts, c_locale());
    if (end == NULL || *end != 0) continue;
    *seconds = (int64_t)timegm(&parts);
    return 1;
  }
  return 0;
}
#endif
