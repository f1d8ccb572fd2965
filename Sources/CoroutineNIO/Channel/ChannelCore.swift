#if NIO
@_spi(Hosting) import Coroutine
import NIOCore

// The state that a channel's handler shares with the coroutines that use the channel, except the received values.
//
// Everything here is accessed on the channel's event loop: by the callbacks of the handler, and by coroutines of that
// loop. So there is no lock, and a race is an order of callbacks. Foreign code inside an operation (other handlers,
// during a flush, a read or a close) may call back synchronously, on the coroutine's own stack. So each operation is a
// loop: it begins, tests its condition, and after each call of foreign code begins again. Only a round without such a
// call waits (see HostedWaiters).
//
//   input    OPEN -- end of input, or the channel is inactive or the handler removed --> ENDED
//   output   OPEN -- finish, the peer's reset, the channel is inactive or closed here --> ENDED
//   channel  ACTIVE -- close() --> CLOSING -- writes are done --> ABORTING -- inactive, or handler removed --> GONE
//            ACTIVE --------------------------------------------------------------------------------------> GONE
//
// Invariants
//  1. A read is requested only by a coroutine that waits for a value and finds none, and only if none is outstanding.
//     A read that brings no value (a decoder needs more bytes) is repeated while a coroutine waits. So if the peer is
//     faster than the coroutine, the process holds the values of one read, and the other bytes stay in the system's
//     buffers.
//  2. `unfinishedWrites` is the number of writes whose promise NIO has not fulfilled.
//  3. An error is in `failure` from its callback until one operation throws it. The values that arrived before it are
//     read first; `valuesBeforeFailure` counts them. An error that the pipeline has caught does not stop the output
//     while the channel lives, because the response to a request must not fail if the next request is malformed.
//  4. An error that arrives before another one was thrown is dropped, because NIO fires the error that ends a
//     connection, and fails every pending write with it. If a write has failed, the error that is kept ends the output.
//     The callback of an error does not run the coroutines that it wakes, so that all these callbacks come first.
//  5. Written values are flushed when the loop's current drain ends, whatever the coroutine waits for, or before that,
//     if an operation waits for room.
//
// Why a reader's flush, and its request for a read, wait for the end of the drain. The loop then makes both on its own
// stack, which is in the cache. On the coroutine's stack they would touch several KiB that differ for each connection.

@usableFromInline
class ChannelCore {
  let channel: any NIOCore.Channel
  let coroutines: LoopCoroutines
  // Sound because `coroutines` retains both. Loads of references that are retained would retain them once more for each
  // call.
  private let host: Unmanaged<EventLoopHost>
  private let scheduler: Unmanaged<HostedScheduler>

  // No access here lasts: none calls foreign code before it ends. So the checks for overlapping accesses, which take
  // longer than the accesses, are off.

  /// Set while the handler is in the pipeline.
  @exclusivity(unchecked) final var context: ChannelHandlerContext?

  /// The coroutines that wait for a value, for writability, and for the end of writes or of the channel.
  private let readers = HostedWaiters()
  private let writers = HostedWaiters()
  private let closers = HostedWaiters()

  @exclusivity(unchecked) final var inputHasEnded = false
  @exclusivity(unchecked) final var outputHasEnded = false
  @exclusivity(unchecked) final var isClosedHere = false
  @exclusivity(unchecked) private final var isGone = false
  /// Whether this side has asked NIO to close the channel.
  @exclusivity(unchecked) private final var isAborting = false
  @exclusivity(unchecked) final var failure: (any Error)?
  @exclusivity(unchecked) private final var isFailureOfWrite = false
  @exclusivity(unchecked) final var valuesBeforeFailure = 0
  /// The number of values that were read and not taken; kept by the handler.
  @exclusivity(unchecked) final var available = 0
  @exclusivity(unchecked) private final var hasOutstandingRead = false
  @exclusivity(unchecked) private final var needsFlush = false
  /// Whether a coroutine that waits for a value needs a read.
  @exclusivity(unchecked) private final var needsRead = false
  /// Whether the loop calls `continueAfterDrain`.
  @exclusivity(unchecked) private final var isListed = false
  @exclusivity(unchecked) private final var unfinishedWrites = 0
  /// Whether the output is closed when no write is unfinished: a coroutine that waited for that was cancelled.
  @exclusivity(unchecked) private final var finishesLater = false
  /// Called once, when the channel becomes active.
  @exclusivity(unchecked) final var onActive: (() -> Void)?

  init(_ channel: any NIOCore.Channel) {
    self.channel = channel
    coroutines = LoopTable.coroutines(of: channel.eventLoop)
    host = .passUnretained(coroutines.host)
    scheduler = .passUnretained(coroutines.scheduler)
  }

  // MARK: Operations: on coroutines of the loop

  /// Begins an operation; returns false, and has done nothing, in a coroutine that is not the loop's.
  ///
  /// May suspend. Throws the cancellation error, and ``CoroutineError/notInCoroutine`` outside a coroutine.
  @usableFromInline
  final func begin() throws -> Bool { try scheduler._withUnsafeGuaranteedRef { try $0.begin() } }

  /// Continues an operation after foreign code, or after a wait, as `begin`.
  final func goOn() throws { try HostedWaiters.begin() }

  final func throwFailure() throws {
    guard let error = failure else { return }
    failure = nil
    throw error
  }

  /// Throws the error that ends the output, if no operation has thrown it.
  final func throwOutputFailure() throws {
    if isFailureOfWrite || isGone { try throwFailure() }
  }

  /// Waits for a value, or requests a read or flushes; called if there is neither a value nor an error.
  final func waitForValue() throws {
    if host._withUnsafeGuaranteedRef({ $0.phase == .draining }) {
      if !hasOutstandingRead {
        needsRead = true
        continueLater()
      }
    } else {
      // A coroutine that was started immediately, and has not suspended yet.
      if !hasOutstandingRead { return requestRead() }
      if needsFlush { return flush() }
    }
    try readers.wait()
  }

  private func continueLater() {
    if isListed { return }
    isListed = true
    host._withUnsafeGuaranteedRef { $0.continueLater(self) }
  }

  /// Flushes, or waits until the channel is writable; called if it is not.
  final func waitUntilWritable() throws {
    if needsFlush { return flush() }
    try writers.wait()
  }

  /// Counts a write, and returns the promise for it.
  final func beginWrite() -> EventLoopPromise<Void> {
    let promise = host._withUnsafeGuaranteedRef { $0.loop.makePromise(of: Void.self) }
    unfinishedWrites += 1
    // The callback runs on the loop; the handler is not Sendable.
    promise.futureResult.assumeIsolatedUnsafeUnchecked().whenComplete { [self] result in writeEnded(result) }
    needsFlush = true
    continueLater()
    return promise
  }

  final func finish() throws {
    while true {
      try goOn()
      try throwOutputFailure()
      try requireOutput()
      if !needsFlush { break }
      flush()
    }
    outputHasEnded = true
    writers.wakeAll()
    // If the peer has ended its output, NIO closes the whole channel, and drops what is not written. So this waits
    // until everything is written. Then an error that fails the writes does not also fail the promise of the close.
    while !isGone, unfinishedWrites > 0 {
      do {
        try goOn()
        if !isGone, unfinishedWrites > 0 { try closers.wait() }
      } catch {
        if unfinishedWrites > 0 { finishesLater = true } else { context?.close(mode: .output, promise: nil) }
        throw error
      }
    }
    try finishNow()
  }

  /// Closes the output; called when everything is written.
  private func finishNow() throws {
    guard let context, !isGone else {
      try throwFailure()
      throw ChannelError.ioOnClosedChannel
    }
    let promise = channel.eventLoop.makePromise(of: Void.self)
    context.close(mode: .output, promise: promise)
    do {
      try co_await(promise.futureResult)
    } catch let error as ChannelError where error == .operationUnsupported {
      // The channel has no half-closure, so the output is still open.
      outputHasEnded = isClosedHere || isGone
      throw error
    }
    if isFailureOfWrite { try throwFailure() }
  }

  final func close() throws {
    beginClosing()
    do {
      while !isGone, unfinishedWrites > 0 {
        try goOn()
        if needsFlush { flush() } else if !isGone, unfinishedWrites > 0 { try closers.wait() }
      }
    } catch {
      closeNow()
      throw error
    }
    closeNow()
    while !isGone {
      try goOn()
      if !isGone { try closers.wait() }
    }
    try throwFailure()
  }

  final func requireOutput() throws {
    if isClosedHere || isGone { throw ChannelError.ioOnClosedChannel }
    if outputHasEnded { throw ChannelError.outputClosed }
  }

  // MARK: Steps

  private func requestRead() {
    hasOutstandingRead = true
    context?.read()
  }

  private func flush() {
    needsFlush = false
    context?.flush()
  }

  /// Called when the loop's drain has ended.
  final func continueAfterDrain() {
    isListed = false
    if needsRead {
      needsRead = false
      // Unless the coroutine was cancelled, or foreign code has read in the meantime.
      if !readers.isEmpty, !hasOutstandingRead, available == 0 { requestRead() }
    }
    if needsFlush { flush() }
  }

  private func writeEnded(_ result: Result<Void, any Error>) {
    unfinishedWrites -= 1
    if case .failure(let error) = result { fail(error, ofWrite: true) }
    if unfinishedWrites == 0 { writesEnded() }
  }

  private func writesEnded() {
    closers.wakeAll()
    if finishesLater {
      finishesLater = false
      if !isGone { context?.close(mode: .output, promise: nil) }
    }
  }

  /// Ends reading and writing from this side; pending writes go on.
  private func beginClosing() {
    isClosedHere = true
    (inputHasEnded, outputHasEnded) = (true, true)
    readers.wakeAll()
    writers.wakeAll()
  }

  private func closeNow() {
    isAborting = true
    if !isGone { context?.close(mode: .all, promise: nil) }
  }

  private func fail(_ error: any Error, ofWrite: Bool) {
    // Errors that follow from closing the channel on this side are not reported.
    if failure == nil, !isAborting {
      failure = error
      isFailureOfWrite = ofWrite
      valuesBeforeFailure = available
    } else if ofWrite, failure != nil {
      // The output has a gap. The earlier error, which only a read would have thrown, ends the output too.
      isFailureOfWrite = true
    }
    readers.wakeAll()
    writers.wakeAll()
  }

  // MARK: Callbacks: called by the handler, in the loop

  /// Wakes the readers, or continues a read that has brought no value.
  ///
  /// Coroutines run only if a reader is woken; what others have woken runs in a call of the loop. At the peer's end NIO
  /// calls this before it has noted the end, and a debug build of NIO ends the process if the channel is closed then.
  final func readCompleted() {
    hasOutstandingRead = false
    if readers.isEmpty { return }
    if available > 0 || failure != nil || inputHasEnded {
      host._withUnsafeGuaranteedRef { $0.wake(readers) }
    } else {
      requestRead()
    }
  }

  final func inputEnded() {
    inputHasEnded = true
    readers.wakeAll()
  }

  final func outputEnded() {
    outputHasEnded = true
    writers.wakeAll()
  }

  final func writabilityChanged() {
    if channel.isWritable { writers.wakeAll() }
  }

  final func errorCaught(_ error: any Error) { fail(error, ofWrite: false) }

  final func becameActive() {
    let launch = onActive.take()
    launch?()
  }

  /// The channel is inactive, or the handler was removed.
  final func becameInactive() {
    isGone = true
    onActive = nil
    inputEnded()
    outputEnded()
    closers.wakeAll()
  }

  /// Runs a callback, and then the coroutines that it has woken.
  final func inCallback(_ body: () -> Void) { coroutines.host.inCallback(body) }
}
#endif
