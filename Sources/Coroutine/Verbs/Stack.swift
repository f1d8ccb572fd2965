internal import CCoroutine
import Synchronization

/// Runs `body` on a stack of at least `size`, and returns its result or throws its error.
///
/// For code that goes deep now and then, like a decoder of nested documents: the coroutine waits on a small stack for
/// the rest of its life, and the large one goes back to the pool when `body` has ended.
///
/// <!-- compiled: Tests/CoroutineTests/Snippets/GuideStateSnippets.swift -->
/// ```swift
/// try co_withStack(.bytes(4 << 20)) { depth(body) }
/// ```
///
/// It is one call, as without it: task-locals and ``CoroutineLocal`` bindings, deadlines and cancellation, scopes,
/// locks and accesses to `inout` parameters of the caller hold in `body`, and what `body` locks is the caller's. The
/// closure does not escape, so it captures anything. `body` may wait, wherever the caller may. Only the rounding mode
/// of floating point is the default one at its begin, and the caller's again at its end.
///
/// May be called anywhere, also outside a coroutine. It does not suspend by itself, and costs about 50 ns, and one
/// allocation if `body` captures anything. A generator cannot yield inside of it: the stack of its body is another one.
///
/// Throws ``CoroutineError/stackTooLarge(_:)`` above 16 MiB, and ``CoroutineError/outOfStacks(_:)`` if there is no
/// stack; then `body` has not run.
///
/// - Parameters:
///   - size: The size of the stack, all of which is for `body`.
///   - body: The code to run.
@inlinable @discardableResult
public func co_withStack<Output>(_ size: StackSize, _ body: () throws -> Output) throws -> Output {
  try withoutActuallyEscaping(body) { body in
    var call = StackCall<Output>(body)
    try withUnsafeMutablePointer(to: &call) { try StackCalls.run(size, UnsafeMutableRawPointer($0)) }
    return try call.result.unsafelyUnwrapped.get()
  }
}

/// A body on its way to another stack, in the frame of its caller.
@usableFromInline
struct StackCall<Output> {
  @usableFromInline let start: StackCallStart
  @usableFromInline let body: () throws -> Output
  @usableFromInline var result: Result<Output, any Error>?

  @inlinable
  init(_ body: @escaping () throws -> Output) {
    self.body = body
    start = StackCallStart {
      let call = $0.assumingMemoryBound(to: Self.self)
      call.pointee.result = Result(catching: call.pointee.body)
    }
  }
}

/// The first field of every StackCall: runs the body of the call at an address, whatever its type.
///
/// A structure, because Swift passes a bare closure to generic code in another form than it stores one.
@usableFromInline
struct StackCallStart {
  @usableFromInline let run: (UnsafeMutableRawPointer) -> Void

  @inlinable
  init(_ run: @escaping (UnsafeMutableRawPointer) -> Void) { self.run = run }
}

@usableFromInline
package enum StackCalls {
  /// Runs the body of the StackCall at `call`.
  @usableFromInline
  static func run(_ size: StackSize, _ call: UnsafeMutableRawPointer) throws {
    try run(size, call) { call in
      guard let call else { return }
      call.assumingMemoryBound(to: StackCallStart.self).pointee.run(call)
    }
  }

  /// Calls `body` with `argument` on a stack of at least `size`, as ``co_withStack(_:_:)`` does.
  ///
  /// For paths that are too hot for its closure, which is allocated for each call. `body` leaves an error in what
  /// `argument` points to.
  ///
  /// The frames of the body belong to the running job, and to the generator in whose body the caller is, if there is
  /// one: the context of the stack has their label, and the generator's record (Generator+Delegation.swift).
  package static func run(
    _ size: StackSize,
    _ argument: UnsafeMutableRawPointer,
    _ body: @convention(c) (UnsafeMutableRawPointer?) -> Void
  ) throws {
    let job = Carrier.current?.pointee.job
    // A job that never stepped a generator is in no body.
    let mayBeInBody = job.map { $0.pointee.owner.load(ordering: .relaxed) & OwnerNumber.mayStep != 0 } ?? true
    let here = mayBeInBody ? cco_context_here() : nil
    if job == nil { cco_guard_thread() }
    let status = cco_call_on_stack(
      size.byteCount,
      body,
      argument,
      job?.label ?? here?.pointee.label,
      here?.pointee.argument
    )
    switch status {
    case CCO_OK: return
    case CCO_STACK_TOO_LARGE: throw CoroutineError.stackTooLarge(size.byteCount)
    default: throw CoroutineError.outOfStacks(String(cString: cco_status_message(status)))
    }
  }
}
