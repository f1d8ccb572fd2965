/// Lets other coroutines run: the coroutine goes to the back of the ready queue, behind all others that are ready on
/// this queue.
///
/// <!-- compiled: Tests/CoroutineTests/Snippets/GuideStateSnippets.swift -->
/// ```swift
/// func checksum(_ bytes: [UInt8]) throws -> Int {
///   var sum = 0
///   for (index, byte) in bytes.enumerated() {
///     sum &+= Int(byte)
///     if index % 100_000 == 99_999 { try co_yield() }
///   }
///   return sum
/// }
/// ```
///
/// Throws if the coroutine is cancelled, before or after; ``CoroutineError/notInCoroutine`` outside a coroutine.
@available(*, noasync, message: "use `Task.yield()`")
public func co_yield() throws {
  let (carrier, job) = try Carrier.requireJob()
  try job.checkCancelled()
  if !Carrier.yield(carrier, job) {
    // No other coroutine is ready, and no message is pending: continue. The driver is still entered at regular
    // intervals.
    if carrier.pointee.isAlone {
      carrier.pointee.switchesLeft &-= 1
      return
    }
    Carrier.giveWay(carrier, job)
  }
  try job.checkCancelled()
}
