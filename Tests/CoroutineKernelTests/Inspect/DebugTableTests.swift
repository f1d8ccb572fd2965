import CCoroutineInspect
import Testing

@testable import Coroutine

/// The table of offsets by which gdb finds coroutines, against the layout of a job's record.
@Suite("The table for debuggers")
struct DebugTableTests {
  @Test func `has the offsets of a job's record and the names of the waits`() {
    let table = cco_debug_v1
    let job = co_launch(start: .lazy) {}
    let record = job.record
    func offset<Value: ~Copyable>(_ value: borrowing Value) -> UInt64 {
      withUnsafePointer(to: value) { UInt64(UnsafeRawPointer($0) - UnsafeRawPointer(record)) }
    }
    #expect(table.version == 1)
    #expect(Int(table.count) == MemoryLayout<cco_debug>.size / 8 - 2)
    #expect(table.record_label == UInt64(UnsafeRawPointer(record.label) - UnsafeRawPointer(record)))
    #expect(table.record_wait == offset(record.pointee.wait))
    #expect(table.record_flags == offset(record.pointee.flags))
    #expect(table.record_kind == offset(record.pointee.waitKind))
    #expect(table.record_since == offset(record.pointee.waitingSince))
    #expect(table.record_source == offset(record.pointee.waitSource))
    #expect(table.flag_cancelled == UInt64(JobFlags.cancelled))
    let kinds = String(cString: table.kinds).split(separator: " ")
    for (number, name) in kinds.enumerated() { #expect(WaitKind(rawValue: UInt8(number))?.name == String(name)) }
    #expect(WaitKind(rawValue: UInt8(kinds.count)) == nil)
    job.cancel()
  }
}
