import Testing

@testable import Coroutine

struct ProcessorsTests {
  @Test func `counts the processors that the affinity mask allows`() {
    #expect(Processors.allowed(status: "Name:\tx\nCpus_allowed:\tff,00000001\nMems_allowed:\t1\n") == 9)
    #expect(Processors.allowed(status: "Cpus_allowed:\t3\n") == 2)
    #expect(Processors.allowed(status: "Cpus_allowed_list:\t0-1\n") == nil)
  }

  @Test func `takes the tightest quota of the cgroup and all above it, rounded up`() {
    let files = [
      "/sys/fs/cgroup/cpu.max": "max 100000\n", "/sys/fs/cgroup/a/cpu.max": "150000 100000\n",
      "/sys/fs/cgroup/a/b/cpu.max": "400000 100000\n",
    ]
    #expect(Processors.quota(membership: "0::/a/b\n") { files[$0] } == 2)
    #expect(Processors.quota(membership: "0::/\n") { files[$0] } == .max)
  }

  @Test func `reads the quota of cgroup version 1 as well`() {
    let files = [
      "/sys/fs/cgroup/cpu/x/cpu.cfs_quota_us": "250000\n", "/sys/fs/cgroup/cpu/x/cpu.cfs_period_us": "100000\n",
      "/sys/fs/cgroup/cpu/cpu.cfs_quota_us": "-1\n", "/sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000\n",
    ]
    #expect(Processors.quota(membership: "3:cpu,cpuacct:/x\n2:memory:/y\n") { files[$0] } == 3)
  }
}
