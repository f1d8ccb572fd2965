import Glibc
import Testing

@testable import Coroutine
@testable import CoroutineNet

/// The working directory belongs to the process, so these run in processes of their own.
@Suite("Unix sockets with relative paths", .timeLimit(.minutes(10)))
struct WorkingDirectoryTests {
  @Test func `the file of a relative path goes with its socket, wherever the process works then`() async {
    await #expect(processExitsWith: .success) {
      let folder = freshPath("folder")
      let other = freshPath("other")
      for path in [folder, other] { #expect(mkdir(path, 0o700) == 0) }
      defer { for path in [folder, other] { rmdir(path) } }
      #expect(chdir(folder) == 0)
      let listener = try Listener.bind(.unix("a.sock"))
      let datagrams = try DatagramSocket.bind(.unix("b.sock"))
      #expect(access("\(folder)/a.sock", F_OK) == 0 && access("\(folder)/b.sock", F_OK) == 0)
      #expect(chdir(other) == 0)
      // A file of the same name at the new place is not the socket's.
      let mine = try Listener.bind(.unix("a.sock"))
      listener.close()
      datagrams.close()
      #expect(access("\(folder)/a.sock", F_OK) != 0 && access("\(folder)/b.sock", F_OK) != 0)
      #expect(access("\(other)/a.sock", F_OK) == 0)
      mine.close()
      #expect(access("\(other)/a.sock", F_OK) != 0)
    }
  }

  @Test func `a socket in a directory that is gone is bound and closed nevertheless`() async {
    await #expect(processExitsWith: .success) {
      let folder = freshPath("folder")
      #expect(mkdir(folder, 0o700) == 0 && chdir(folder) == 0 && rmdir(folder) == 0)
      // The kernel makes no file there.
      #expect(code { try Listener.bind(.unix("a.sock")) } == ENOENT)
    }
  }
}
