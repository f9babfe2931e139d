/* A plugin of QEMU that counts what a machine executes: the number of its instructions, of user and of kernel, is kept in
 * the first 8 bytes of the file that the argument counter=PATH names. A processor that sleeps executes nothing.
 *
 * The interface is version 1 of QEMU's for plugins (docs/devel/tcg-plugins.rst of QEMU 7.2, whose package has no header). */
#include <fcntl.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

struct qemu_plugin_tb;
enum { INLINE_ADD_U64 };

void qemu_plugin_register_vcpu_tb_trans_cb(uint64_t id, void (*translated)(uint64_t id, struct qemu_plugin_tb *block));
size_t qemu_plugin_tb_n_insns(const struct qemu_plugin_tb *block);
void qemu_plugin_register_vcpu_tb_exec_inline(struct qemu_plugin_tb *block, int operation, void *counter, uint64_t by);

int qemu_plugin_version = 1;

static uint64_t *counter;

static void translated(uint64_t id, struct qemu_plugin_tb *block)
{
	(void)id;
	qemu_plugin_register_vcpu_tb_exec_inline(block, INLINE_ADD_U64, counter, qemu_plugin_tb_n_insns(block));
}

int qemu_plugin_install(uint64_t id, const void *info, int count, char **arguments)
{
	(void)info;
	if (count != 1 || strncmp(arguments[0], "counter=", 8) != 0) {
		fprintf(stderr, "instructions: it takes counter=PATH\n");
		return -1;
	}
	int file = open(arguments[0] + 8, O_RDWR | O_CREAT | O_TRUNC, 0600);
	if (file < 0 || ftruncate(file, sizeof *counter) != 0) {
		perror(arguments[0]);
		return -1;
	}
	counter = mmap(NULL, sizeof *counter, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
	close(file);
	if (counter == MAP_FAILED) {
		perror(arguments[0]);
		return -1;
	}
	qemu_plugin_register_vcpu_tb_trans_cb(id, translated);
	return 0;
}
