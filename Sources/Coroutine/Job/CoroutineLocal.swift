internal import CCoroutine

/// One binding, in an immutable list that a launched coroutine shares with its launcher.
@usableFromInline
final class LocalBinding: Sendable {
  let key: ObjectIdentifier
  let value: any Sendable
  // Sound because it is changed in a deinit only: its own, or that of a binding that had the last reference to it.
  @exclusivity(unchecked) nonisolated(unsafe) private(set) var outer: LocalBinding?
  /// The task-locals that the flow of control with this list has inherited.
  let taskLocals: TaskLocalSnapshot?

  init(key: ObjectIdentifier, value: any Sendable, outer: LocalBinding?) {
    self.key = key
    self.value = value
    self.outer = outer
    taskLocals = outer?.taskLocals
  }

  /// Creates a binding of no local, for a flow of control that inherits `list` together with `taskLocals`.
  init(_ list: LocalBinding?, with taskLocals: TaskLocalSnapshot?) {
    key = ObjectIdentifier(LocalBinding.self)
    value = ()
    outer = list.flatMap { $0.key == ObjectIdentifier(LocalBinding.self) ? $0.outer : $0 }
    self.taskLocals = taskLocals
  }

  deinit {
    // A loop: bindings nest as deeply as programs like, and the last reference to a list releases all of it.
    var last = outer.take()
    while last != nil, isKnownUniquelyReferenced(&last), let binding = last { last = binding.outer.take() }
  }

  /// The current list's head: the coroutine's; outside a coroutine the thread's; in a Task the list that it carries.
  static var current: LocalBinding? {
    if let job = Carrier.current?.pointee.job { return job.pointee.locals?.takeUnretainedValue() }
    if let head = cco_thread().pointee.locals { return Unmanaged<LocalBinding>.fromOpaque(head).takeUnretainedValue() }
    return cco_may_have_task_locals() ? CarriedLocals.list : nil
  }

  @usableFromInline
  static func currentRetained() -> Unmanaged<LocalBinding>? { current.map(Unmanaged.passRetained) }

  /// Makes `head` the current list, taking over one reference, and returns the old head with its reference.
  static func exchange(_ head: Unmanaged<LocalBinding>?) -> Unmanaged<LocalBinding>? {
    if let job = Carrier.current?.pointee.job {
      let old = job.pointee.locals
      job.pointee.locals = head
      return old
    }
    let old = cco_thread().pointee.locals
    cco_thread().pointee.locals = head?.toOpaque()
    return old.map { Unmanaged.fromOpaque($0) }
  }

  /// Creates a Task in `body`, whose async code sees the current list.
  static func carried<Output>(_ body: () throws -> Output) rethrows -> Output {
    guard let current else { return try body() }
    return try CarriedLocals.$list.withValue(current, operation: body)
  }
}

/// Carries a list into a Task.
enum CarriedLocals {
  @TaskLocal static var list: LocalBinding?
  static var key: UnsafeRawPointer { UnsafeRawPointer(Unmanaged.passUnretained($list).toOpaque()) }
}

/// A value that is bound while a closure runs.
///
/// <!-- compiled: Tests/CoroutineTests/Snippets/GuideSnippets.swift -->
/// ```swift
/// let requestID = CoroutineLocal(default: "none")
/// let seen = try requestID.withValue("r-17") {
///   try co_launch { requestID.value }.join()
/// }
/// ```
///
/// - In a coroutine, a binding holds in the body of `withValue` and in every coroutine launched in it, on any thread.
/// - Outside a coroutine, it holds on the calling thread during the body, and in every coroutine launched in it.
/// - Async code that a coroutine calls by `co_await` sees the coroutine's bindings, and so do coroutines that the code
///   launches.
///
/// Coroutines do not see the bindings of other coroutines. Reading takes time linear in the number of current bindings.
public final class CoroutineLocal<Value: Sendable>: Sendable {
  private let defaultValue: Value

  /// Creates a local; `value` is its value without a binding.
  public init(default value: Value) { defaultValue = value }

  /// The current value.
  ///
  /// May be read anywhere; does not suspend.
  public var value: Value { value(from: LocalBinding.current) }

  /// The value that a list of bindings has.
  func value(from list: LocalBinding?) -> Value {
    let key = ObjectIdentifier(self)
    var binding = list
    while let current = binding {
      // The cast cannot fail: only `withValue` of this object makes bindings with its identity.
      if current.key == key { return (current.value as? Value) ?? defaultValue }
      binding = current.outer
    }
    return defaultValue
  }

  /// Binds `value` while `body` runs, and returns or throws the outcome of `body`.
  ///
  /// Any thread; does not suspend by itself. `body` may suspend and continue on another thread, because the binding
  /// belongs to the coroutine.
  public func withValue<Output, Failure>(
    _ value: Value,
    _ body: () throws(Failure) -> Output
  ) throws(Failure) -> Output {
    let binding = LocalBinding(key: ObjectIdentifier(self), value: value, outer: LocalBinding.current)
    let outer = LocalBinding.exchange(Unmanaged.passRetained(binding))
    defer { LocalBinding.exchange(outer)?.release() }
    return try withExtendedLifetime(self) { () throws(Failure) in try body() }
  }
}
