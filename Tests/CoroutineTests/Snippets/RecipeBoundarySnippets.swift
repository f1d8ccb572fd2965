import Coroutine
import CoroutineTesting
import Dispatch
import Glibc
import Testing

// The code of the recipes in Sources/Coroutine/Coroutine.docc/Recipes. This file: code that knows no coroutines.

/// Stands for a function of a C library: it returns at once, and calls `done` on a thread of its own.
func fetch_async(
  _ key: Int32,
  _ done: @escaping @convention(c) (_ context: UnsafeMutableRawPointer?, _ result: Int32) -> Void,
  _ context: UnsafeMutableRawPointer?
) {
  // Sound because the pointer is only passed on.
  nonisolated(unsafe) let context = context
  DispatchQueue.global().async { done(context, key == 0 ? -ENOENT : key * 2) }
}

// MARK: WrapACallbackAPI.md

/// Waits for the callback of `fetch_async`.
func fetch(_ key: Int32) throws -> Int32 {
  try co_suspend { (resumer: Resumer<Int32>) in
    // The library keeps one reference until it calls back, which it does exactly once.
    let context = Unmanaged.passRetained(resumer).toOpaque()
    fetch_async(
      key,
      { context, result in
        guard let context else { return }
        let resumer = Unmanaged<Resumer<Int32>>.fromOpaque(context).takeRetainedValue()
        if result < 0 { resumer.fail(ErrnoError(-result)) } else { resumer.resume(result) }
      },
      context
    )
  }
}

// MARK: WrapABlockingLibrary.md

/// Closes a descriptor whose caller was cancelled.
private func giveBack(_ descriptor: Int32) { close(descriptor) }

/// A file of a library that blocks, and that one thread at a time may use.
final class BlockingFile: Sendable {
  private let order = FairMutex()
  private let descriptor: Int32
  init(_ path: String) throws {
    descriptor = try co_blocking(onUndelivered: giveBack) {
      let descriptor = open(path, O_RDONLY)
      if descriptor < 0 { throw ErrnoError(errno) }
      return descriptor
    }
  }

  deinit { close(descriptor) }
  func read(upTo count: Int) throws -> [UInt8] {
    try order.withLock {
      // Not given up while it runs: the lock must be held until the library has finished.
      try co_shield {
        try co_blocking { [descriptor] in
          var bytes = [UInt8](repeating: 0, count: count)
          let got = Glibc.read(descriptor, &bytes, count)
          if got < 0 { throw ErrnoError(errno) }
          return Array(bytes.prefix(got))
        }
      }
    }
  }
}

@Suite("What the recipes about other code show", .timeLimit(.minutes(10)))
struct RecipeBoundarySnippets {
  @Test func `a callback of C resumes a coroutine, or fails it`() async throws {
    try await co_launch {
      let value = try fetch(21)
      #expect(value == 42)
      #expect(throws: ErrnoError(ENOENT)) { try fetch(0) }
    }.value
  }

  @Test func `a blocking file is read, and a missing one fails`() async throws {
    try await co_launch {
      let file = try BlockingFile("/proc/self/stat")
      let bytes = try file.read(upTo: 10)
      #expect(!bytes.isEmpty)
      #expect(throws: ErrnoError(ENOENT)) { try BlockingFile("/no/such/file") }
    }.value
  }

  @Test func `readers of a blocking file take turns, block no queue, and lose nothing if cancelled`() async throws {
    let (readEnd, writeEnd) = try openPipe()
    try await co_launch(on: DispatchQueue(label: "serial")) {
      let file = try BlockingFile("/proc/self/fd/\(readEnd)")
      let reader = co_launch { try file.read(upTo: 10) }
      // A second reader waits for its turn, so that both run on the queue before anything is written.
      let second = co_launch(name: "second reader") { try file.read(upTo: 10) }
      var secondWaits: Bool {
        CoroutineRuntime.snapshot().coroutines.contains { $0.name == "second reader" && $0.wait?.owner != nil }
      }
      while !secondWaits { try co_yield() }
      // The library has been called, and its caller is cancelled: what is read is not lost.
      reader.cancel()
      #expect(write(writeEnd, "first", 5) == 5)
      let first = try reader.join()
      #expect(String(decoding: first, as: UTF8.self) == "first")
      #expect(write(writeEnd, "then", 4) == 4)
      let then = try second.join()
      #expect(String(decoding: then, as: UTF8.self) == "then")
    }.value
    close(readEnd)
    close(writeEnd)
  }

  private func openPipe() throws -> (readEnd: Int32, writeEnd: Int32) {
    var ends: [Int32] = [-1, -1]
    guard pipe(&ends) == 0 else { throw ErrnoError(errno) }
    return (ends[0], ends[1])
  }
}
