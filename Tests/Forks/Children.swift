import CTestSupport
import Glibc

/// Something that a process does, and whether all of it was as expected.
struct Step: Sendable {
  let name: String
  let body: @Sendable () throws -> Bool

  /// The time that a child has: a child that forks in its turn waits for a quiet moment, and for its own children.
  static var seconds: UInt32 { 200 }

  init(_ name: String, _ body: @escaping @Sendable () throws -> Bool) {
    self.name = name
    self.body = body
  }

  /// Runs the body in this process.
  func run() -> Bool {
    do {
      if try body() { return true }
      report("not as expected")
    } catch {
      report("\(error)")
    }
    return false
  }

  /// Runs the body in a forked child.
  func runInChild() -> Bool {
    Step.ofChild = self
    let status = cts_in_child_with_sockets(Self.seconds, { _ in Step.ofChild!.run() ? 0 : 1 }, nil)
    if status != 0 { report("ended with \(status)") }
    return status == 0
  }

  // Sound because only the thread that forks next writes it, and only its child reads it.
  nonisolated(unsafe) private static var ofChild: Step?

  private func report(_ text: String) {
    let line = "\(name) (process \(getpid())): \(text)\n"
    line.utf8CString.withUnsafeBytes { _ = write(STDERR_FILENO, $0.baseAddress, $0.count - 1) }
  }
}

/// Runs `body` on a new thread, and waits for it.
func onThread(_ body: @escaping @Sendable () -> Bool) -> Bool {
  let errand = Errand(body)
  var thread = pthread_t()
  pthread_create(
    &thread,
    nil,
    { argument in
      let errand = Unmanaged<Errand>.fromOpaque(argument!).takeUnretainedValue()
      errand.result = errand.body()
      return nil
    },
    Unmanaged.passUnretained(errand).toOpaque()
  )
  pthread_join(thread, nil)
  return errand.result
}

// Sound because the second thread ends before the first one reads the result.
private final class Errand: @unchecked Sendable {
  let body: @Sendable () -> Bool
  var result = false
  init(_ body: @escaping @Sendable () -> Bool) { self.body = body }
}
