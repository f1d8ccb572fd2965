import Coroutine
import Dispatch

// What workloads and curves share, and peers have no use for.

/// Runs `body` as a coroutine on a serial queue of its own, and waits for its end: some 20 µs, spread over all
/// operations of a row.
public func onQueue<Output: Sendable>(_ body: sending @escaping () throws -> Output) throws -> Output {
  try co_launch(on: DispatchQueue(label: "workload"), body).blockingWait()
}

/// A number that several coroutines of one serial queue count in, without the cost of an atomic or of an exclusivity
/// check.
public struct Counter: @unchecked Sendable {
  // Sound because the coroutines that use one run on one serial queue, and the thread that reads it has waited for
  // them.
  @usableFromInline let number = UnsafeMutablePointer<Int>.allocate(capacity: 1)

  /// Starts at `value`.
  public init(_ value: Int = 0) { number.initialize(to: value) }

  /// What it has come to.
  @inlinable public var value: Int {
    get { number.pointee }
    nonmutating set { number.pointee = newValue }
  }

  /// Adds one; returns what it was before.
  @inlinable @inline(__always)
  public func increment() -> Int {
    let old = number.pointee
    number.pointee = old &+ 1
    return old
  }

  /// Gives the memory back and returns the last value.
  public func finish() -> Int {
    defer { number.deallocate() }
    return number.pointee
  }
}
