internal import CCoroutine
import Synchronization

// How a body gets its stack and returns it.

extension GeneratorRecord {
  /// Claims a fresh generator.
  ///
  /// Returns false if it has finished, and throws if it is in use.
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

  /// Takes a stack for a fresh generator that the caller has claimed.
  ///
  /// Returns false if there was no stack; then the generator has ended with that failure.
  static func start(_ record: GeneratorRef) -> Bool {
    let bytes = record.pointee.stackBytes
    var context: UnsafeMutablePointer<cco_context>?
    let status = makeContext(for: record, bytes, &context)
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
    return true
  }

  @inline(__always)
  private static func makeContext(
    for record: GeneratorRef,
    _ bytes: Int,
    _ context: inout UnsafeMutablePointer<cco_context>?
  ) -> cco_status {
    cco_create(
      bytes,
      { context, _ in
        GeneratorRecord.run(context)
        return nil
      },
      record,
      &context
    )
  }

  /// Runs one body.
  ///
  /// Not inlined into the closure that is passed as a C function: there the switches would be compiled as calls.
  @inline(never)
  private static func run(_ context: UnsafeMutablePointer<cco_context>) {
    context.pointee.base = cco_frame()
    let record = context.pointee.argument.unsafelyUnwrapped.assumingMemoryBound(to: GeneratorRecord.self)
    let hasTaskLocals = record.pointee.inheritsTaskLocals
    if hasTaskLocals { enterTaskLocals() }
    perform(record)
    if hasTaskLocals { cco_leave_task_locals() }
  }

  /// Enters the task-locals of the generator, whose list of locals is the current one while the body runs.
  @inline(never)
  private static func enterTaskLocals() { LocalBinding.current?.enterTaskLocals() }

  /// Returns what the body inherits from the caller.
  @usableFromInline @inline(never)
  static func inherited() -> GeneratorInheritance {
    cco_start_if_needed()
    guard let locals = LocalBinding.inherited() else { return GeneratorInheritance(locals: nil, hasTaskLocals: false) }
    return GeneratorInheritance(
      locals: locals.toOpaque(),
      hasTaskLocals: locals._withUnsafeGuaranteedRef { $0.taskLocals != nil }
    )
  }

  /// Runs the body on its stack.
  ///
  /// Keeps no reference to the body, so that the stack may be given back as it is afterwards.
  @inline(__always)
  private static func perform(_ record: GeneratorRef) {
    do {
      try call(exchange(&record.pointee.body, with: .spent).run, Yielder(record))
      record.pointee.ending = .returned
    } catch {
      fail(record, error)
    }
  }

  /// Calls the body.
  ///
  /// A function, because the compiler would retain a variable for the call.
  @inline(__always)
  private static func call(_ body: (Yielder<Void, Void>) throws -> Void, _ yielder: Yielder<Void, Void>) throws {
    try body(yielder)
  }

  /// Gives everything back.
  ///
  /// Called when the body has ended or will never run.
  static func finish(_ record: GeneratorRef) {
    if record.pointee.locks != 0, let job = Carrier.current?.pointee.job { leaveLocks(record, job) }
    giveStackBack(record)
    // A generator that never started still has its body. The captures are released after the end is published, because
    // their deinits may use the generator.
    let body = exchange(&record.pointee.body, with: .spent)
    let locals = record.pointee.locals
    record.pointee.locals = nil
    cco_order_retains()
    record.pointee.claim.store(GeneratorState.finished, ordering: .releasing)
    if let locals { Unmanaged<LocalBinding>.fromOpaque(locals).release() }
    withExtendedLifetime(body) {}
  }

  /// Makes a generator fresh again that has a stack and has not run.
  ///
  /// The caller holds its claim.
  static func putBack(_ record: GeneratorRef) {
    giveStackBack(record)
    record.pointee.active = nil
    cco_order_retains()
    record.pointee.claim.store(GeneratorState.fresh, ordering: .releasing)
  }

  private static func giveStackBack(_ record: GeneratorRef) {
    if let context = record.pointee.context {
      record.pointee.context = nil
      let status = cco_destroy(context)
      if status != CCO_OK { refuse(status) }
    }
  }
}

/// A body, without the types of its yielder.
@usableFromInline
struct GeneratorBody {
  @usableFromInline let run: (Yielder<Void, Void>) throws -> Void

  /// The body of a generator whose body has been taken.
  static var spent: GeneratorBody { GeneratorBody { (_: Yielder<Void, Void>) in } }

  // Sound because a yielder is two plain words for all types, so all such closures are called alike. The closure is
  // wrapped in a structure, because Swift wraps a bare closure that is passed to generic code, with an allocation.
  @inlinable
  init<Element, Input>(_ body: @escaping (Yielder<Element, Input>) throws -> Void) {
    self = unsafeBitCast(TypedGeneratorBody(run: body), to: GeneratorBody.self)
  }
}

/// A body with the types of its yielder.
@usableFromInline
struct TypedGeneratorBody<Element, Input> {
  @usableFromInline let run: (Yielder<Element, Input>) throws -> Void

  @inlinable
  init(run: @escaping (Yielder<Element, Input>) throws -> Void) { self.run = run }
}
