#if NIO
@_spi(Hosting) import Coroutine
import NIOCore

// Operations for coroutines that do not run on the channel's loop, as those of another connection that passes on what
// it has received. The state of a channel is accessed on its loop alone, so a coroutine of the loop does the operation,
// and the caller waits for it: two changes of threads, which coroutines of the loop do not pay.

extension ChannelCore {
  /// Whether the calling code is a coroutine of the channel's loop.
  final var runsCaller: Bool { coroutines.scheduler.runsCaller }

  /// Runs an operation in a coroutine of the channel's loop, and waits for its end.
  ///
  /// If the caller is cancelled, so is the operation. If the operation has succeeded nevertheless, the result is
  /// returned: the value of a read would be lost otherwise. Throws ``CoroutineError/notInCoroutine`` outside a
  /// coroutine.
  @usableFromInline
  final func onLoop<Output: Sendable>(_ operation: @escaping @Sendable () throws -> Output) throws -> Output {
    try co_checkCancelled()
    let job = co_launch(on: channel.eventLoop, name: "operation of a channel", operation)
    do {
      return try job.join()
    } catch {
      job.cancel(error)
      return try co_shield { try job.join() }
    }
  }

  /// As `onLoop` for `close`; the channel is also closed if the caller is cancelled before the operation begins.
  final func closeOnLoop(_ close: @escaping @Sendable () throws -> Void) throws {
    do {
      try onLoop(close)
    } catch CoroutineError.notInCoroutine {
      throw CoroutineError.notInCoroutine
    } catch {
      channel.close(promise: nil)
      throw error
    }
  }
}
#endif
