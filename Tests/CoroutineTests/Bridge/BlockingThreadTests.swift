import Dispatch
import Testing

@testable import Coroutine

#if canImport(Glibc)
import Glibc
#else
import Musl
#endif

@Suite("A thread for blocking code", .timeLimit(.minutes(1)))
struct BlockingThreadTests {
  @Test func `has a name that says whose it is`() async throws {
    let name = try await onCoroutine { try co_blocking { text(of: "/proc/thread-self/comm") } }
    #expect(name.hasPrefix("co-blocking-"))
  }

  @Test func `takes the signals that a dispatch worker takes`() async throws {
    let mine = try await onCoroutine { try co_blocking { blockedSignals() } }
    let workers = try await onBlock(of: .global()) { blockedSignals() }
    #expect(mine == workers)
    #expect(mine.contains(SIGTERM) && mine.contains(SIGUSR2) && mine.contains(SIGCHLD))
    #expect(!mine.contains(SIGSEGV) && !mine.contains(SIGPROF))
  }

  @Test func `leaves its creator's signals as they were`() async throws {
    let (before, after) = try await onOwnThread {
      let before = blockedSignals()
      SignalMask.whileBlocked {}
      return (before, blockedSignals())
    }
    #expect(before == after)
  }

  @Test func `has a stack of 1 MiB`() async throws {
    let size = try await onCoroutine {
      try co_blocking {
        var local = 0
        let address = withUnsafePointer(to: &local) { UInt(bitPattern: $0) }
        return mappings().first { $0.contains(address) }?.count ?? 0
      }
    }
    #expect(size >= 1 << 20 && size < 2 << 20)
  }
}

private func text(of path: String) -> String {
  guard let file = fopen(path, "r") else { return "" }
  defer { fclose(file) }
  var text: [UInt8] = []
  var block = [UInt8](repeating: 0, count: 65_536)
  while case let count = fread(&block, 1, block.count, file), count > 0 { text += block.prefix(count) }
  return String(decoding: text, as: UTF8.self)
}

/// The process's memory, by the kernel's list: `7f12a000-7f12b000 rw-p …`.
private func mappings() -> [Range<UInt>] {
  text(of: "/proc/self/maps").split(separator: "\n").compactMap { line in
    let ends = line.prefix { $0 != " " }.split(separator: "-").compactMap { UInt($0, radix: 16) }
    return ends.count == 2 ? ends[0]..<ends[1] : nil
  }
}

/// The signals that the calling thread blocks.
private func blockedSignals() -> Set<Int32> {
  var mask = sigset_t()
  pthread_sigmask(SIG_BLOCK, nil, &mask)
  return Set((1..<32).filter { sigismember(&mask, $0) == 1 })
}
