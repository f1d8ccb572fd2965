internal import CCoroutine

// The memory of a job. It is a cell of the C core, not the memory of the object that users hold: the C library gives
// memory back between two bursts of launches, and to get it again costs more than the launches (docs/evolution/0056).
//
//   AnyJob            cell, 256 bytes
//   +-----------+     +-----------+------------+--------+
//   | memory ---+---> | JobRecord | Completion | object |
//   +-----------+     +-----------+------------+--------+
//         ^                                        |
//         +------------- no reference -------------+
//
// The object makes the cell in its init and gives it back at the end of its deinit, so a record lives as long as its
// object. The runtime's queues and lists hold records; a live job holds one retain of its object for them.

/// The parts of a job, by the address of its cell.
// Sound because each part is aligned to 8 bytes and has a size that is a multiple of it, so the offsets are multiples
// too; and all three together fit into a cell, which `initialize` checks.
@usableFromInline
struct JobMemory {
  @usableFromInline let cell: UnsafeMutableRawPointer

  @inlinable @inline(__always)
  init(at cell: UnsafeMutableRawPointer) { self.cell = cell }

  /// Initializes all of it, for `object`.
  func initialize(for object: AnyJob, _ record: consuming JobRecord, _ completion: consuming Completion) {
    precondition(
      Self.objectOffset + MemoryLayout<Unmanaged<AnyJob>>.size <= Int(CCO_CELL_BYTES),
      "a job does not fit into its cell"
    )
    self.record.initialize(to: record)
    self.completion.initialize(to: completion)
    self.object.initialize(to: .passUnretained(object))
  }

  /// Ends all of it, the value or failure of the completion as well, and gives the cell back.
  func destroy() {
    completion.deinitialize(count: 1)
    record.deinitialize(count: 1)
    cco_cell_give(cell)
  }

  @inlinable var record: JobRef {
    @inline(__always) get { cell.assumingMemoryBound(to: JobRecord.self) }
  }
  @inlinable var completion: CompletionRef {
    @inline(__always) get { (cell + Self.completionOffset).assumingMemoryBound(to: Completion.self) }
  }
  /// The object that the cell belongs to; constant.
  @inlinable var object: UnsafeMutablePointer<Unmanaged<AnyJob>> {
    @inline(__always) get { (cell + Self.objectOffset).assumingMemoryBound(to: Unmanaged<AnyJob>.self) }
  }

  @inlinable static var completionOffset: Int { MemoryLayout<JobRecord>.stride }
  @inlinable static var objectOffset: Int { completionOffset + MemoryLayout<Completion>.stride }
}

extension UnsafeMutablePointer where Pointee == JobRecord {
  /// Prefetches the object of a job that has not begun, and what its body has captured.
  ///
  /// The body may have been released by another thread: then this prefetches something useless.
  @inline(__always)
  func prefetchBody() {
    cco_prefetch_line(handle.toOpaque())
    // The second word of a function is the address of its context.
    let body = JobMemory(at: UnsafeMutableRawPointer(self)).completion.bytesAddress.pointee[1]
    if let captures = UnsafeRawPointer(bitPattern: body) { cco_prefetch_line(captures) }
  }

  /// The object that the record belongs to.
  @inlinable var handle: Unmanaged<AnyJob> {
    @inline(__always) get { JobMemory(at: UnsafeMutableRawPointer(self)).object.pointee }
  }
}

extension UnsafeMutablePointer where Pointee == Completion {
  /// The record of the job whose completion this is.
  var ownJob: JobRef {
    JobMemory(at: UnsafeMutableRawPointer(self) - JobMemory.completionOffset).record
  }
}
