import CCoroutine
public import CCoroutineRuntime
public import Synchronization

/// One binding, in an immutable list that a launched coroutine shares with its launcher.
@usableFromInline
final class LocalBinding: Sendable {
  let key: ObjectIdentifier
  let value: any Sendable
  // Sound because it is changed in a deinit only: its own, or that of a binding that had the last reference to it.
  @exclusivity(unchecked) nonisolated(unsafe) private(set) var outer: LocalBinding?
  /// The task-locals that the flow of control with this list has inherited.
  let taskLocals: TaskLocalSnapshot?
  /// The number of bindings from here on, and how many the last `newest` has left.
  private let count: Int
  private let newestCount: Int

  private init(
    key: ObjectIdentifier,
    value: any Sendable,
    outer: LocalBinding?,
    with taskLocals: TaskLocalSnapshot?,
    newestCount: Int
  ) {
    self.key = key
    self.value = value
    self.outer = outer
    self.taskLocals = taskLocals
    self.newestCount = newestCount
    count = (outer?.count ?? 0) + 1
  }

  /// Creates a binding in front of `list`.
  ///
  /// Rounds that each bind something and launch the next one would make a list without an end, whose values no code
  /// can read any more. So the list behind a new binding is rebuilt when it has doubled, from the newest binding of
  /// each local: constant time for each binding in the long run. The code that restores `list` has it.
  convenience init(key: ObjectIdentifier, value: any Sendable, outer list: LocalBinding?) {
    let isLong = list.map { $0.count > 2 * $0.newestCount + 32 } ?? false
    let outer = isLong ? list?.newest : list
    self.init(
      key: key,
      value: value,
      outer: outer,
      with: list?.taskLocals,
      newestCount: isLong ? outer?.count ?? 0 : list?.newestCount ?? 0
    )
  }

  /// Creates a binding of no local, for a flow of control that inherits `list` together with `taskLocals`.
  convenience init(_ list: LocalBinding?, with taskLocals: TaskLocalSnapshot?) {
    self.init(
      key: Self.noLocal,
      value: (),
      outer: list.flatMap { $0.key == Self.noLocal ? $0.outer : $0 },
      with: taskLocals,
      newestCount: list?.newestCount ?? 0
    )
  }

  private static var noLocal: ObjectIdentifier { ObjectIdentifier(LocalBinding.self) }

  /// A list of the newest bindings of all locals in this one.
  private var newest: LocalBinding? {
    var (kept, seen): ([LocalBinding], Set<ObjectIdentifier>) = ([], [Self.noLocal])
    var next: LocalBinding? = self
    while let binding = next {
      if seen.insert(binding.key).inserted { kept.append(binding) }
      next = binding.outer
    }
    return kept.reversed().reduce(nil) { list, binding in
      LocalBinding(key: binding.key, value: binding.value, outer: list, with: taskLocals, newestCount: kept.count)
    }
  }

  deinit {
    // A loop: bindings nest as deeply as programs like, and the last reference to a list releases all of it.
    var last = outer.take()
    while last != nil, isKnownUniquelyReferenced(&last), let binding = last { last = binding.outer.take() }
  }

  /// The current list's head: the coroutine's; outside a coroutine the thread's; in a Task the list that it carries.
  static var current: LocalBinding? {
    if let job = Carrier.current?.pointee.job { return job.pointee.locals?.takeUnretainedValue() }
    if let head = cco_layer().pointee.locals { return Unmanaged<LocalBinding>.fromOpaque(head).takeUnretainedValue() }
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
    let old = cco_layer().pointee.locals
    cco_layer().pointee.locals = head?.toOpaque()
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
/// - A handler (`then`, `tap`, `finally` …) and the block of `Promise.running(on:)` see the bindings of the code that
///   has attached them.
///
/// Coroutines do not see the bindings of other coroutines. Reading takes time linear in the number of locals that are
/// bound; a value that another binding hides is kept for some 32 rounds at most, by code that binds and launches in
/// each round.
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

// MARK: - Inherited task-locals

// Task-locals that are bound where a coroutine is launched are seen in its body, as in a Task; those that are bound
// where a handler is attached are seen in the handler.
//
// Swift's runtime keeps bindings in a list of items that it frees when `withValue` returns, so a launched coroutine
// cannot use the launcher's items. It gets a snapshot: copies of the items, which live as long as anything refers to
// the snapshot. A coroutine's list begins with the items of its snapshot (TaskLocals.c). So a coroutine that has bound
// nothing itself passes its own snapshot on: one retain, whatever the number of bindings. A coroutine that has bound
// something copies its own items in front of the snapshot's, one item for each key. A flow of control without a
// snapshot (a Task, a thread) copies all items, as creating a Task does.
//
//   launcher's list     own 2 -> own 1 -> inherited 2 -> inherited 1
//   its snapshot                          ^ first
//   child's snapshot    copy 2 -> copy 1 -> (shared)
//
// Invariants
//  1. Items never change after they have been published, and values are Sendable. So any thread may read and copy them.
//  2. A snapshot retains the snapshot behind it, so all items that its first one leads to are alive.
//  3. A coroutine that uses a snapshot's items retains the snapshot, by the list of its CoroutineLocals, until it has
//     left them.
//  4. Within one snapshot a key occurs once. The number of items behind an item is bounded: a chain of coroutines that
//     each bind something and launch the next one copies the newest item of every key, from time to time, into a
//     snapshot without one behind it.

/// Copies of task-local bindings.
@usableFromInline
final class TaskLocalSnapshot: @unchecked Sendable {
  // Sound because everything is immutable, and the values that the items hold are Sendable.
  let first: UnsafePointer<cco_task_local>
  /// The number of items from `first` on.
  private let count: Int
  /// The number of items that the last complete copy had.
  private let completeCount: Int
  private let outer: TaskLocalSnapshot?

  private init(_ items: [UnsafePointer<cco_task_local>], before outer: TaskLocalSnapshot?) {
    var next = outer?.first
    for item in items.reversed() { next = Self.copy(item, before: next) }
    first = next.unsafelyUnwrapped
    count = items.count + (outer?.count ?? 0)
    completeCount = outer?.completeCount ?? items.count
    self.outer = outer
  }

  deinit {
    var item = first
    while item != outer?.first {
      let next = UnsafePointer<cco_task_local>(bitPattern: item.pointee.next)
      Self.free(item)
      guard let next else { return }
      item = next
    }
  }

  /// Returns a snapshot of the bindings that the calling flow of control sees; nil if there are none.
  ///
  /// `inherited` is the snapshot that this flow of control has begun with.
  static func ofCurrent(_ inherited: TaskLocalSnapshot?) -> TaskLocalSnapshot? {
    guard let first = cco_task_locals() else { return nil }
    // The frequent case allocates nothing: everything was inherited.
    if first == inherited?.first { return inherited }
    let (own, shared) = items(from: first, before: inherited)
    guard let shared else { return own.isEmpty ? nil : TaskLocalSnapshot(own, before: nil) }
    if own.isEmpty { return shared }
    if own.count + shared.count <= 2 * shared.completeCount + 32 { return TaskLocalSnapshot(own, before: shared) }
    return TaskLocalSnapshot(items(from: first, before: nil).items, before: nil)
  }

  /// Returns the newest item of each key in front of those of `snapshot`, and the snapshot if the list leads to it.
  private static func items(
    from first: UnsafePointer<cco_task_local>,
    before snapshot: TaskLocalSnapshot?
  ) -> (items: [UnsafePointer<cco_task_local>], snapshot: TaskLocalSnapshot?) {
    var items: [UnsafePointer<cco_task_local>] = []
    // The list that async code carries is inherited in another way.
    var seen: Set = [CarriedLocals.key]
    var next: UnsafePointer<cco_task_local>? = first
    while let item = next {
      if item == snapshot?.first { return (items, snapshot) }
      if seen.insert(item.pointee.key).inserted { items.append(item) }
      next = cco_next_task_local(item)
    }
    return (items, nil)
  }

  // MARK: Items

  /// The distance of the value from its item.
  private static func offset<Value>(_ type: Value.Type) -> Int {
    let mask = MemoryLayout<Value>.alignment - 1
    return (MemoryLayout<cco_task_local>.size + mask) & ~mask
  }

  // Sound because the runtime stores the metadata of the value's type there, which is what a metatype is.
  private static func metadata(of item: UnsafePointer<cco_task_local>) -> Any.Type {
    unsafeBitCast(item.pointee.type.unsafelyUnwrapped, to: Any.Type.self)
  }

  private static func copy(
    _ item: UnsafePointer<cco_task_local>,
    before next: UnsafePointer<cco_task_local>?
  ) -> UnsafePointer<cco_task_local> {
    func copy<Value>(_ type: Value.Type) -> UnsafePointer<cco_task_local> {
      let offset = offset(type)
      let memory = UnsafeMutableRawPointer.allocate(
        byteCount: offset + MemoryLayout<Value>.size,
        alignment: max(16, MemoryLayout<Value>.alignment)
      )
      let copied = memory.bindMemory(to: cco_task_local.self, capacity: 1)
      copied.initialize(to: item.pointee)
      copied.pointee.next = UInt(bitPattern: next)
      let value = UnsafeRawPointer(item).advanced(by: offset).assumingMemoryBound(to: Value.self)
      memory.advanced(by: offset).bindMemory(to: Value.self, capacity: 1).initialize(to: value.pointee)
      return UnsafePointer(copied)
    }
    return _openExistential(metadata(of: item), do: copy)
  }

  private static func free(_ item: UnsafePointer<cco_task_local>) {
    func free<Value>(_ type: Value.Type) {
      let memory = UnsafeMutableRawPointer(mutating: item)
      memory.advanced(by: offset(type)).assumingMemoryBound(to: Value.self).deinitialize(count: 1)
      memory.deallocate()
    }
    _openExistential(metadata(of: item), do: free)
  }
}

// MARK: Inheriting

extension LocalBinding {
  /// Returns what a flow of control that is created here inherits, with one reference: the list of CoroutineLocals, and
  /// with it the task-locals.
  ///
  /// The caller has called `cco_start`.
  @usableFromInline
  static func inherited() -> Unmanaged<LocalBinding>? {
    cco_may_have_task_locals() ? inheritedWithTaskLocals() : currentRetained()
  }

  @inline(never)
  static func inheritedWithTaskLocals() -> Unmanaged<LocalBinding>? {
    let current = current
    let taskLocals = TaskLocalSnapshot.ofCurrent(current?.taskLocals)
    if taskLocals === current?.taskLocals { return current.map(Unmanaged.passRetained) }
    return Unmanaged.passRetained(LocalBinding(current, with: taskLocals))
  }

  /// Begins a flow of control with inherited task-locals: it has none of its own yet.
  func enterTaskLocals() {
    if let taskLocals { cco_enter_task_locals(taskLocals.first) }
  }

  /// Returns what a handler that is attached here inherits, as `inherited` does.
  static func inheritedByHandler() -> Unmanaged<LocalBinding>? {
    cco_start_if_needed()
    return inherited()
  }

  /// Calls `run` on this thread with the bindings of `list`, and without those of the code around it.
  ///
  /// For code that was handed over, and runs outside of the coroutine that has handed it over: handlers, and blocks.
  static func bound<R>(_ list: LocalBinding?, _ run: () -> R) -> R {
    // The frequent case: nothing is bound. The looks at the thread's words cost 1 to 2 ns of some 100.
    if list == nil, current == nil, !cco_may_have_task_locals() { return run() }
    return replacing(list, run)
  }

  @inline(never)
  private static func replacing<R>(_ list: LocalBinding?, _ run: () -> R) -> R {
    let aside = cco_put_task_locals_aside()
    let outer = exchange(list.map(Unmanaged.passRetained))
    list?.enterTaskLocals()
    defer {
      list?.leaveTaskLocals()
      exchange(outer)?.release()
      cco_take_task_locals_back(aside)
    }
    return run()
  }

  /// Returns a block that calls `body` with the bindings that are seen here.
  static func binding(_ body: @escaping @Sendable () -> Void) -> @Sendable () -> Void {
    let list = inheritedByHandler()?.takeRetainedValue()
    return { bound(list, body) }
  }

  /// Ends a flow of control that has begun with `enterTaskLocals`.
  private func leaveTaskLocals() {
    if taskLocals != nil { cco_leave_task_locals() }
  }
}

extension AnyJob {
  /// Stores what the job inherits from its launcher.
  ///
  /// Called before the job is published, after `markEnqueued`.
  final func inherit() {
    guard cco_may_have_task_locals() else {
      record.pointee.locals = LocalBinding.currentRetained()
      return
    }
    let inherited = LocalBinding.inheritedWithTaskLocals()
    record.pointee.locals = inherited
    // Atomic, because a scope that is cancelled at this moment cancels its children.
    if inherited?._withUnsafeGuaranteedRef({ $0.taskLocals != nil }) ?? false {
      _ = record.pointee.flags.bitwiseOr(JobFlags.inheritsTaskLocals, ordering: .relaxed)
    }
  }

  /// Prepares a job with `JobFlags.needsPreparation`: enters inherited task-locals; returns false if it is dropped.
  ///
  /// `flags` are those that `claimBegin` has returned.
  @usableFromInline @inline(never)
  final func prepareForBody(_ flags: UInt32) -> Bool {
    if flags & JobFlags.inheritsTaskLocals != 0 {
      record.pointee.locals?._withUnsafeGuaranteedRef { $0.enterTaskLocals() }
    }
    return flags & JobFlags.cancelled == 0
  }

  /// Leaves and releases the inherited bindings, on the job's own stack, after its body.
  @inline(never)
  final func leave(_ locals: Unmanaged<LocalBinding>) {
    if record.pointee.flags.load(ordering: .relaxed) & JobFlags.inheritsTaskLocals != 0 { cco_leave_task_locals() }
    locals.release()
  }
}

// MARK: - Flows and owner numbers

// The flows of control that step generators, coroutines and threads, and the numbers under which they own locks.

/// The part of a job that a generator's step uses; a thread outside any job has the same in its words
/// (CCoroutineRuntime.h).
@usableFromInline
struct Flow: ~Copyable {
  @usableFromInline let owner: Atomic<UInt>
  @usableFromInline var locals: UnsafeMutableRawPointer?
}

extension UnsafeMutablePointer where Pointee == JobRecord {
  // Sound because stored properties are laid out in the order of their declaration; AnyJob checks it.
  @inlinable var flow: UnsafeMutablePointer<Flow> {
    @inline(__always) get {
      withUnsafeMutablePointer(to: &pointee.frames) {
        UnsafeMutableRawPointer($0 + 1).assumingMemoryBound(to: Flow.self)
      }
    }
  }

  /// The number under which the job owns locks.
  @inline(__always) var ownerNumber: UInt { pointee.owner.load(ordering: .relaxed) & ~OwnerNumber.mayStep }
}

extension UnsafeMutablePointer where Pointee == cco_layer_words {
  // Sound because the structure in C declares the same two words.
  @inlinable var flow: UnsafeMutablePointer<Flow> {
    @inline(__always) get {
      withUnsafeMutablePointer(to: &pointee.owner) { UnsafeMutableRawPointer($0).assumingMemoryBound(to: Flow.self) }
    }
  }
}

/// The numbers under which coroutines and threads own locks.
///
/// None is used twice in a process: not after the end of its owner, and by no two kinds of owner. Zero is no owner.
@usableFromInline
enum OwnerNumber {
  /// A flag of the `owner` of a flow that has stepped a generator, no part of a number.
  @inlinable static var mayStep: UInt { 1 }
  private static var drawnFlag: UInt { 2 }

  private static let drawn = Atomic<UInt>(0)

  /// The number of the job with this identifier.
  static func ofJob(_ id: UInt64) -> UInt { UInt(id) << 2 }
  /// A number without an owner: for a thread, and for a job whose identifier another world uses as well.
  static func draw() -> UInt { drawn.wrappingAdd(1, ordering: .relaxed).newValue << 2 | drawnFlag }

  /// Stands for any Task, which has no number that a report could tell; never drawn.
  static var ofTask: UInt { drawnFlag }

  enum Kind {
    case job(UInt)
    case drawn
  }

  static func kind(of number: UInt) -> Kind {
    number & drawnFlag != 0 ? .drawn : .job(number >> 2)
  }

  /// The calling thread's number, with the flag.
  static var ofThread: UInt {
    let owner = cco_layer().pointee.owner
    return owner != 0 ? owner : drawForThread()
  }

  @inline(never)
  private static func drawForThread() -> UInt {
    let owner = draw()
    cco_layer().pointee.owner = owner
    return owner
  }
}

extension UnsafeMutablePointer where Pointee == JobRecord {
  /// Whether the caller, which this job runs, is on the job's own stack and not on that of a body that the job steps.
  var isOnOwnStack: Bool {
    guard let context = pointee.context else { return false }
    let here = cco_frame()
    return here >= UnsafeMutableRawPointer(context.pointee.low) && here < UnsafeMutableRawPointer(context)
  }
}
