import Glibc

extension CoroutineRuntime {
  /// A failure that no code observes, as ``CoroutineRuntime/unhandledErrorHandler`` receives it.
  public struct UnhandledError: Sendable, CustomStringConvertible {
    /// The failure.
    public let error: any Error
    /// The name of the coroutine or the actor; nil if it has none, and for promises and generators.
    public let name: String?
    /// The file and the line of the launch or the creation; nil if they are not known.
    public let launchSite: String?
    /// What has failed: `"name" (id 7, launched at Module/File.swift:12)` of a coroutine, `a promise (created at …)`.
    ///
    /// Texts of users are escaped in it.
    public let origin: String

    /// Creates a failure, as a test of a handler needs one.
    ///
    /// - Parameters:
    ///   - error: The failure.
    ///   - name: The name of the coroutine or the actor.
    ///   - launchSite: The file and the line of the launch or the creation.
    ///   - origin: What has failed, as the runtime says it.
    public init(error: any Error, name: String? = nil, launchSite: String? = nil, origin: String) {
      self.error = error
      self.name = name
      self.launchSite = launchSite
      self.origin = origin
    }

    /// A line for a log: the origin and the failure.
    public var description: String { "unhandled error in \(origin.asLine): \(asLine(error))" }
  }
}

extension CoroutineRuntime.UnhandledError {
  init(_ error: any Error, in job: JobOrigin) {
    self.init(error: error, name: job.name?.text, launchSite: job.launchSite.description, origin: job.summary)
  }

  init(_ error: any Error, in origin: String, at launchSite: LaunchSite? = nil) {
    self.init(error: error, launchSite: launchSite?.description, origin: origin)
  }
}

/// The destination of unobserved failures: the handler behind ``CoroutineRuntime/unhandledErrorHandler``.
enum UnhandledErrors {
  // Sound because it is read and written under `lock`.
  nonisolated(unsafe) private static var stored: @Sendable (CoroutineRuntime.UnhandledError) -> Void = writeLine
  private static let lock = SpinLock()

  static var handler: @Sendable (CoroutineRuntime.UnhandledError) -> Void {
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

  static func report(_ unhandled: CoroutineRuntime.UnhandledError) { handler(unhandled) }

  @Sendable private static func writeLine(_ unhandled: CoroutineRuntime.UnhandledError) {
    writeToStandardError("Coroutine: \(unhandled)\n")
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

  final func report(_ error: any Error) { UnhandledErrors.report(.init(error, in: origin)) }
}

extension LaunchSite: CustomStringConvertible {
  @usableFromInline var description: String {
    "\(String(decoding: UnsafeBufferPointer(start: file, count: Int(length)), as: UTF8.self).asWord):\(line)"
  }
}
