#if Postgres
import Coroutine
import CoroutinePostgres
import Foundation
import Testing

private let isSanitized = dlsym(nil, "__asan_init") != nil || dlsym(nil, "__tsan_init") != nil

/// What is streamed is not kept.
@Suite(.timeLimit(.minutes(10)))
struct MemoryTests {
  /// The most memory that this process has had, in bytes.
  private static func peak() -> Int {
    let text = (try? String(contentsOfFile: "/proc/self/status", encoding: .utf8)) ?? ""
    let line = text.split(separator: "\n").first { $0.hasPrefix("VmHWM:") } ?? ""
    return (line.split(separator: " ").compactMap { Int($0) }.first ?? 0) << 10
  }

  @Test(.enabled(if: !isSanitized, "a sanitizer keeps memory that was released"))
  func `a million rows are streamed both ways in constant memory`() async throws {
    // In a process of its own: the other tests need memory as well. A row has 200 bytes, so all of them have 200 MB.
    await #expect(processExitsWith: .success) {
      let rows = 1_000_000
      let limit = 48 << 20
      try await withPool { db in
        try db.transaction { t in
          var seen = 0
          func stream(_ count: Int) throws {
            try t.forEach("select n, repeat('x', 200) from generate_series(1, \(count)) n", batch: 1_000) { row in
              seen += 1
              guard seen.isMultiple(of: 1_000) else { return }
              let (number, _) = try row.decode((Int, String).self)
              #expect(number == seen)
            }
          }
          try stream(10_000)
          seen = 0
          let before = Self.peak()
          try stream(rows)
          #expect(seen == rows)
          #expect(Self.peak() - before < limit)
          try t.run("create temporary table big (n int, x text)")
          let block = Array(String(repeating: "1\t" + String(repeating: "x", count: 200) + "\n", count: 1_000).utf8)
          let copied = try t.copyIn("copy big from stdin") { write in
            for _ in 0..<rows / 1_000 { try write(block) }
          }
          #expect(copied == rows)
          var bytes = 0
          try t.copyOut("copy big to stdout") { bytes += $0.count }
          #expect(bytes == block.count * rows / 1_000)
          #expect(Self.peak() - before < limit)
        }
      }
    }
  }
}
#endif
