import Glibc

/// Where failures go that nobody will see: the handler behind ``CoroutineRuntime/onUnhandledError``.
enum UnhandledErrors {
  // Sound because it is read and written under `lock`.
  nonisolated(unsafe) private static var stored: @Sendable (any Error, _ job: String) -> Void = writeLine
  private static let lock = SpinLock()

  static var handler: @Sendable (any Error, _ job: String) -> Void {
    get { lock.withLock { stored } }
    set {
      // The old one is released after the lock is left: that may run foreign code.
      let old = lock.withLock {
        let old = stored
        stored = newValue
        return old
      }
      _ = consume old
    }
  }

  static func report(_ error: any Error, in origin: String) { handler(error, origin) }

  @Sendable private static func writeLine(_ error: any Error, _ job: String) {
    writeToStandardError("Coroutine: unhandled error in \(job): \(error)\n")
  }
}

/// In one write as a rule, so that lines of several threads do not mix.
func writeToStandardError(_ text: String) {
  var text = text
  text.withUTF8 { bytes in
    var rest = bytes[...]
    while !rest.isEmpty {
      let count = write(STDERR_FILENO, UnsafeBufferPointer(rebasing: rest).baseAddress, rest.count)
      // Interrupted by a signal, it goes on; closed or full, there is nobody to tell.
      if count < 0, errno != EINTR { return }
      rest = rest.dropFirst(max(0, count))
    }
  }
}

extension AnyJob {
  /// Its name, number and launch place: `"name" (id 7, launched at Module/File.swift:12)`.
  final var summary: String { origin.summary }
}

extension LaunchSite: CustomStringConvertible {
  @usableFromInline var description: String {
    "\(String(decoding: UnsafeBufferPointer(start: file, count: Int(length)), as: UTF8.self)):\(line)"
  }
}
