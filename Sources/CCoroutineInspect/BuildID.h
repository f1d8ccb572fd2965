// The build ID in the notes of an ELF image, in memory or in a file. Async-signal-safe.
#ifndef CCOROUTINE_BUILD_ID_H
#define CCOROUTINE_BUILD_ID_H

#include <elf.h>
#include <link.h>
#include <string.h>

enum { CCO_BUILD_ID = 64, CCO_BUILD_ID_TEXT = 2 * CCO_BUILD_ID + 1 };

// Writes the hexadecimal digits of the build ID among `notes`, terminated; changes nothing if there is none.
static inline void cco_find_build_id(const char *notes, size_t size, char *out) {
  while (size >= sizeof(ElfW(Nhdr))) {
    ElfW(Nhdr) note;
    memcpy(&note, notes, sizeof note);
    size_t name = ((size_t)note.n_namesz + 3) & ~(size_t)3, text = ((size_t)note.n_descsz + 3) & ~(size_t)3;
    if (name > size - sizeof note || text > size - sizeof note - name) return;
    const unsigned char *at = (const unsigned char *)notes + sizeof note;
    if (note.n_type == NT_GNU_BUILD_ID && note.n_namesz == 4 && memcmp(at, "GNU", 4) == 0 &&
        note.n_descsz <= CCO_BUILD_ID) {
      for (size_t i = 0; i < note.n_descsz; i++) {
        out[2 * i] = "0123456789abcdef"[at[name + i] >> 4];
        out[2 * i + 1] = "0123456789abcdef"[at[name + i] & 15];
      }
      out[2 * note.n_descsz] = 0;
      return;
    }
    notes = (const char *)at + name + text;
    size -= sizeof note + name + text;
  }
}

#endif
