/// The numbers of parts of the library that Inspect does not name.
///
/// A part that has such numbers sets the function that reads them, once, when it is first used. Until then its numbers
/// are zero.
enum MetricSources {
  /// The threads of co_blocking, and the bodies that wait for one.
  typealias Blocking = @Sendable () -> (threads: Int, waiting: Int)

  private static let lock = ThreadLock()
  // Sound because it is read and written under `lock`.
  nonisolated(unsafe) private static var blockingSource: Blocking?

  static var blocking: (threads: Int, waiting: Int) { lock.withLock { blockingSource }?() ?? (0, 0) }

  static func setBlocking(_ source: @escaping Blocking) { lock.withLock { blockingSource = source } }
}
