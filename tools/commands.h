/* commands.h: the subcommands. argv[0] is the command's last word; each returns an exit code. */
#ifndef HL_COMMANDS_H
#define HL_COMMANDS_H

int hl_cmd_plan(int argc, char **argv);
int hl_cmd_config(int argc, char **argv);
int hl_cmd_ckpt_inspect(int argc, char **argv);
int hl_cmd_ckpt_verify(int argc, char **argv);
int hl_cmd_ckpt_diff(int argc, char **argv);
int hl_cmd_ckpt_reshard(int argc, char **argv);
int hl_cmd_ckpt_export(int argc, char **argv);
int hl_cmd_ckpt_import(int argc, char **argv);
int hl_cmd_doctor(int argc, char **argv);
int hl_cmd_bench_adam(int argc, char **argv);
int hl_cmd_bench_io(int argc, char **argv);
int hl_cmd_bench_link(int argc, char **argv);
int hl_cmd_bench_step(int argc, char **argv);
int hl_cmd_profile_show(int argc, char **argv);
int hl_cmd_sim(int argc, char **argv);
int hl_cmd_report(int argc, char **argv);
int hl_cmd_tune(int argc, char **argv);

#endif
