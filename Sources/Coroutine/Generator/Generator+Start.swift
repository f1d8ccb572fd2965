internal import CCoroutine
import Synchronization

// How a body comes to its stack and leaves it. The stack stays parked in `run` when it goes back to the pool, as a fiber's
// does in its loop: the next generator that gets it starts there, which saves the way through the C core's trampoline and
// two returns that no processor could predict. Parked there it owns nothing, so it may be given back as it is, and a stack
// that gets another kind of body begins anew.

extension GeneratorRecord {
  /// Claims a fresh one; false: it has finished.
  static func claimFresh(_ record: GeneratorRef) throws -> Bool {
    let (exchanged, state) = record.pointee.claim.compareExchange(
      expected: GeneratorState.fresh,
      desired: GeneratorState.running,
      ordering: .acquiring
    )
    if exchanged { return true }
    if state == GeneratorState.finished { return false }
    throw refusal(of: record)
  }

  /// Gets a stack for a fresh one that the caller has claimed.
  ///
  /// False: there was none, and it has ended with that failure.
  static func start(_ record: GeneratorRef) -> Bool {
    let bytes = record.pointee.stackBytes
    var context: UnsafeMutablePointer<cco_context>?
    let status = cco_create(bytes, { context, _ in GeneratorRecord.run(context) }, record, &context)
    guard status == CCO_OK, let context else {
      let sentence = String(cString: cco_status_message(status))
      fail(record, status == CCO_STACK_TOO_LARGE ? CoroutineError.stackTooLarge(bytes) : .outOfStacks(sentence))
      finish(record)
      return false
    }
    record.pointee.label.id = context.pointee.serial
    context.pointee.label = UnsafePointer(withUnsafeMutablePointer(to: &record.pointee.label) { $0 })
    record.pointee.context = context
    record.pointee.active = record
    record.pointee.locals = LocalBinding.currentRetained()?.toOpaque()
    return true
  }

  /// The first frame on the stack.
  ///
  /// Not inlined into the closure that is passed as a C function: there the switch would be calls.
  @inline(never)
  private static func run(_ context: UnsafeMutablePointer<cco_context>) {
    context.pointee.base = cco_frame()
    // A null entry is the C core's way of asking a stack to leave for good.
    while context.pointee.entry != nil {
      let record = context.pointee.argument.unsafelyUnwrapped.assumingMemoryBound(to: GeneratorRecord.self)
      perform(record)
      cco_restore_floating_point()
      context.pointee.value = nil
      context.pointee.state = CCO_FINISHED
      cco_switch(&context.pointee.parked, context.pointee.caller.unsafelyUnwrapped)
    }
  }

  /// Runs the body, on its stack.
  ///
  /// Keeps nothing of it: afterwards the stack may be given back as it is.
  @inline(__always)
  private static func perform(_ record: GeneratorRef) {
    do {
      try call(exchange(&record.pointee.body, with: .spent).run, Yielder(record))
      record.pointee.ending = .returned
    } catch {
      fail(record, error)
    }
  }

  /// A function, because the compiler would retain a variable for the call.
  @inline(__always)
  private static func call(_ body: (Yielder<Void, Void>) throws -> Void, _ yielder: Yielder<Void, Void>) throws {
    try body(yielder)
  }

  /// The body has ended, or will never run: gives everything back.
  static func finish(_ record: GeneratorRef) {
    giveStackBack(record)
    // Of one that never started. What it has captured goes after the end is known: its deinits may look at the generator.
    let body = exchange(&record.pointee.body, with: .spent)
    record.pointee.claim.store(GeneratorState.finished, ordering: .releasing)
    withExtendedLifetime(body) {}
  }

  /// Makes one that has a stack and has not run a fresh one again.
  ///
  /// The caller holds its claim.
  static func putBack(_ record: GeneratorRef) {
    giveStackBack(record)
    record.pointee.active = nil
    record.pointee.claim.store(GeneratorState.fresh, ordering: .releasing)
  }

  private static func giveStackBack(_ record: GeneratorRef) {
    if let context = record.pointee.context {
      record.pointee.context = nil
      let status = cco_destroy(context)
      if status != CCO_OK { refuse(status) }
    }
    if let locals = record.pointee.locals {
      record.pointee.locals = nil
      Unmanaged<LocalBinding>.fromOpaque(locals).release()
    }
  }
}

/// A body, whatever its yielder gives and takes.
@usableFromInline
struct GeneratorBody {
  @usableFromInline let run: (Yielder<Void, Void>) throws -> Void

  /// Stands where one has been.
  static var spent: GeneratorBody { GeneratorBody { (_: Yielder<Void, Void>) in } }

  // Sound because a yielder is two plain words whatever its types are, so all such closures are called alike. In a
  // structure, because a closure that is handed to generic code by itself is wrapped for it, with an allocation.
  @inlinable
  init<Element, Input>(_ body: @escaping (Yielder<Element, Input>) throws -> Void) {
    self = unsafeBitCast(TypedGeneratorBody(run: body), to: GeneratorBody.self)
  }
}

/// The same before its types are forgotten.
@usableFromInline
struct TypedGeneratorBody<Element, Input> {
  @usableFromInline let run: (Yielder<Element, Input>) throws -> Void

  @inlinable
  init(run: @escaping (Yielder<Element, Input>) throws -> Void) { self.run = run }
}
