#if NIO
import Coroutine
public import NIOCore

// What the coroutines of a channel and its handler share, but for the values that were read.
//
// Everything here is accessed on the channel's event loop: by the callbacks of the handler, and by coroutines of that
// loop. So there is no lock, and a race is an order of callbacks. Foreign code that runs inside of an operation (other
// handlers, during a flush, a read or a close) may call back synchronously, on the coroutine's own stack. So each
// operation is a loop: it begins, tests what it waits for, and after each call of foreign code it begins again. Only a
// round without such a call ends in a wait (HostedWaiters, invariant 3).
//
//   input    OPEN -- end of input, or the channel is inactive or the handler removed --> ENDED
//   output   OPEN -- finish, the peer's reset, the channel is inactive or closed here --> ENDED
//   channel  ACTIVE -- close() --> CLOSING -- writes are done --> ABORTING -- inactive, or handler removed --> GONE
//            ACTIVE --------------------------------------------------------------------------------------> GONE
//
// Invariants
//  1. A read is requested only by a coroutine that waits for a value and finds none, and only if none is outstanding.
//     A read that brings this handler nothing (a decoder needs more bytes) is repeated while a coroutine waits. So of a
//     peer that is faster than the coroutine, the process holds what one read brings, and the rest stays in the
//     system's buffers.
//  2. `unfinishedWrites` is the number of writes whose promise NIO has not fulfilled.
//  3. An error is in `failure` from the callback that brings it until one operation throws it. The values that came
//     before it are read first, by `valuesBeforeFailure`. An error that the pipeline has caught does not stop the
//     output while the channel lives: the answer to a request must not fail because the next request is malformed.
//  4. An error that comes while another one is not thrown yet is dropped: NIO fires the error that ends a connection,
//     and fails every pending write with it. So that all of this happens first, the callback of an error does not run
//     the coroutines that it wakes.
//  5. What was written is flushed before an operation of this channel waits, and at the latest when the loop's current
//     drain ends, whatever the coroutine waits for.

@usableFromInline
class ChannelCore {
  @usableFromInline let channel: any NIOCore.Channel
  let coroutines: LoopCoroutines
  /// Set while the handler is in the pipeline.
  @usableFromInline final var context: ChannelHandlerContext?

  /// The coroutines that wait for a value, for writability, and for the end of writes or of the channel.
  private let readers = HostedWaiters()
  private let writers = HostedWaiters()
  private let closers = HostedWaiters()

  @usableFromInline final var inputHasEnded = false
  @usableFromInline final var outputHasEnded = false
  @usableFromInline final var isClosedHere = false
  private final var isGone = false
  /// Whether this side has asked NIO to close the channel.
  private final var isAborting = false
  @usableFromInline final var failure: (any Error)?
  private final var isFailureOfWrite = false
  @usableFromInline final var valuesBeforeFailure = 0
  /// The number of values that were read and not taken; kept by the handler.
  @usableFromInline final var available = 0
  private final var hasOutstandingRead = false
  private final var needsFlush = false
  private final var isListedForFlush = false
  private final var unfinishedWrites = 0
  /// Called once, when the channel becomes active.
  final var onActive: (() -> Void)?

  init(_ channel: any NIOCore.Channel) {
    self.channel = channel
    coroutines = LoopTable.coroutines(of: channel.eventLoop)
  }

  // MARK: Operations: on coroutines of the loop

  /// Begins an operation, or continues it after foreign code.
  ///
  /// May suspend. Throws the cancellation error.
  @usableFromInline
  final func begin() throws {
    try requireOwnCoroutine()
    try HostedWaiters.begin()
  }

  private func requireOwnCoroutine() throws {
    try coroutines.scheduler.requireOwnCoroutine(
      """
      A NIOCoroutineChannel was used by a coroutine that does not run on the channel's event loop. Launch the coroutine \
      with channel.eventLoop.co_launch, or send the value through a Coroutine.Channel.
      """
    )
  }

  @usableFromInline
  final func throwFailure() throws {
    guard let error = failure else { return }
    failure = nil
    throw error
  }

  /// Throws the error that ends the output, if no operation has thrown it.
  @usableFromInline
  final func throwOutputFailure() throws {
    if isFailureOfWrite || isGone { try throwFailure() }
  }

  /// Makes one step towards a value; there is none, and no error.
  @usableFromInline
  final func waitForValue() throws {
    if !hasOutstandingRead { return requestRead() }
    if needsFlush { return flush() }
    try readers.wait()
  }

  /// Makes one step towards a writable channel; it is not.
  @usableFromInline
  final func waitUntilWritable() throws {
    if needsFlush { return flush() }
    try writers.wait()
  }

  /// Returns the promise of a write that follows.
  @usableFromInline
  final func beginWrite() -> EventLoopPromise<Void> {
    let promise = channel.eventLoop.makePromise(of: Void.self)
    unfinishedWrites += 1
    // Called on the loop: the handler is not Sendable.
    promise.futureResult.assumeIsolated().whenComplete { [self] result in writeEnded(result) }
    needsFlush = true
    if !isListedForFlush {
      isListedForFlush = true
      coroutines.host.flushLater(self)
    }
    return promise
  }

  final func finish() throws {
    while true {
      try begin()
      try throwOutputFailure()
      try requireOutput()
      if !needsFlush { break }
      flush()
    }
    guard let context else { throw ChannelError.ioOnClosedChannel }
    let promise = channel.eventLoop.makePromise(of: Void.self)
    outputHasEnded = true
    writers.wakeAll()
    // NIO closes the output when all that was flushed is written.
    context.close(mode: .output, promise: promise)
    do {
      try co_await(promise.futureResult)
    } catch let error as ChannelError where error == .operationUnsupported {
      // Nothing was closed.
      outputHasEnded = isClosedHere || isGone
      throw error
    }
  }

  final func close() throws {
    try requireOwnCoroutine()
    beginClosing()
    do {
      while !isGone, unfinishedWrites > 0 {
        try HostedWaiters.begin()
        if needsFlush { flush() } else if !isGone, unfinishedWrites > 0 { try closers.wait() }
      }
    } catch {
      closeNow()
      throw error
    }
    closeNow()
    while !isGone {
      try HostedWaiters.begin()
      if !isGone { try closers.wait() }
    }
    try throwFailure()
  }

  @usableFromInline
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
  final func flushAfterDrain() {
    isListedForFlush = false
    if needsFlush { flush() }
  }

  private func writeEnded(_ result: Result<Void, any Error>) {
    unfinishedWrites -= 1
    if case .failure(let error) = result { fail(error, ofWrite: true) }
    if unfinishedWrites == 0 { closers.wakeAll() }
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
    // What fails because the channel is closed here is no news.
    if failure == nil, !isAborting {
      failure = error
      isFailureOfWrite = ofWrite
      valuesBeforeFailure = available
    }
    readers.wakeAll()
    writers.wakeAll()
  }

  // MARK: Callbacks: called by the handler, in the loop

  final func readCompleted() {
    hasOutstandingRead = false
    if readers.isEmpty { return }
    if available > 0 || failure != nil || inputHasEnded { readers.wakeAll() } else { requestRead() }
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

  /// Runs a callback, and then what it has woken.
  final func inCallback(_ body: () -> Void) { coroutines.host.inCallback(coroutines.drain, body) }
}
#endif
