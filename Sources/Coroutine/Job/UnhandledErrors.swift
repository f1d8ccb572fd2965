import Glibc

/// The destination of unobserved failures: the handler behind ``CoroutineRuntime/onUnhandledError``.
enum UnhandledErrors {
  // Sound because it is read and written under `lock`.
  nonisolated(unsafe) private static var stored: @Sendable (any Error, _ job: String) -> Void = writeLine
  private static let lock = SpinLock()

  static var handler: @Sendable (any Error, _ job: String) -> Void {
    get {
      lock.lock()
      defer { lock.unlock() }
      return stored
    }
    set {
      lock.lock()
      let old = stored
      stored = newValue
      lock.unlock()
      // The old handler is released after the lock is left, because that may run foreign code.
      _ = consume old
    }
  }

  static func report(_ error: any Error, in origin: String) { handler(error, origin) }

  @Sendable private static func writeLine(_ error: any Error, _ job: String) {
    writeToStandardError("Coroutine: unhandled error in \(job.asLine): \(asLine(error))\n")
  }
}

/// Writes a text, usually in one write, so that lines of several threads do not mix.
func writeToStandardError(_ text: String) {
  var text = text
  text.withUTF8 { bytes in
    var rest = bytes[...]
    while !rest.isEmpty {
      let count = write(STDERR_FILENO, UnsafeBufferPointer(rebasing: rest).baseAddress, rest.count)
      // After an interruption by a signal it continues; if the descriptor is closed or full, it gives up.
      if count < 0, errno != EINTR { return }
      rest = rest.dropFirst(max(0, count))
    }
  }
}

extension AnyJob {
  /// The name, number and launch site: `"name" (id 7, launched at Module/File.swift:12)`.
  final var summary: String { origin.summary }
}

extension LaunchSite: CustomStringConvertible {
  @usableFromInline var description: String {
    "\(String(decoding: UnsafeBufferPointer(start: file, count: Int(length)), as: UTF8.self).asWord):\(line)"
  }
}
