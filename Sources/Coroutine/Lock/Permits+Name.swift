import Synchronization

extension UnsafeMutablePointer where Pointee == Permits {
  /// Gives the object that contains the permits a name for dumps.
  func setName(_ name: String, of object: AnyObject) {
    ObjectNames.set(name, of: object)
    pointee.isNamed.store(true, ordering: .relaxed)
  }

  /// The first action of the deinit of the object that contains the permits.
  func letFinish(_ object: AnyObject) {
    Inspection.letFinish(object)
    if pointee.isNamed.load(ordering: .relaxed) { ObjectNames.remove(object) }
  }
}
