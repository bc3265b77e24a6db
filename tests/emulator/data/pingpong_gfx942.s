; C = A · Bᵀ, f16 → f32, tile 64x64x64, 8 waves in ping-pong. Emitted by LLVM (llvmlite 0.50) from IR that the
; project's prototype of the AMD target generated, with made-up source lines: gemm.py 8 addresses, 9 global loads,
; 10 shared writes and barriers, 11 shared reads, 12 mma, 13 stores.
	.amdgcn_target "amdgcn-amd-amdhsa--gfx942"
	.amdhsa_code_object_version 5
	.text
	.globl	gemm
	.p2align	8
	.type	gemm,@function
gemm:
.Lfunc_begin0:
	.cfi_sections .debug_frame
	.cfi_startproc
	.file	1 "." "gemm.py"
	.loc	1 8 5 prologue_end
	s_load_dwordx4 s[4:7], s[0:1], 0x18
	s_load_dwordx4 s[20:23], s[0:1], 0x0
	s_load_dwordx2 s[8:9], s[0:1], 0x10
	s_lshl_b32 s16, s3, 6
	v_lshrrev_b32_e32 v1, 3, v0
	v_or_b32_e32 v2, s16, v1
	v_lshlrev_b32_e32 v3, 3, v0
	s_waitcnt lgkmcnt(0)
	s_lshl_b32 s7, s2, 6
	v_mul_lo_u32 v2, s6, v2
	v_and_b32_e32 v3, 56, v3
	s_mul_i32 s0, s4, s6
	v_add_lshl_u32 v8, v2, v3, 1
	v_or_b32_e32 v2, s7, v1
	s_and_b32 s1, s21, 0xffff
	s_lshl_b32 s2, s0, 1
	s_mov_b32 s3, 0x27000
	s_mov_b32 s0, s20
	s_mul_i32 s10, s5, s6
	v_mul_lo_u32 v2, s6, v2
	s_and_b32 s13, s23, 0xffff
	s_lshl_b32 s14, s10, 1
	s_mov_b32 s12, s22
	s_mov_b32 s15, s3
	v_add_lshl_u32 v9, v2, v3, 1
	.loc	1 9 5
	buffer_load_dwordx4 v[4:7], v8, s[0:3], 0 offen
	buffer_load_dwordx4 v[12:15], v9, s[12:15], 0 offen
	.loc	1 8 5
	v_readfirstlane_b32 s19, v0
	v_xor_b32_e32 v2, v1, v0
	v_lshlrev_b32_e32 v2, 4, v2
	s_cmpk_lt_u32 s19, 0x100
	v_and_b32_e32 v2, 0x70, v2
	s_cselect_b64 s[10:11], -1, 0
	s_mov_b32 s17, 0
	v_lshl_or_b32 v10, v1, 7, v2
	s_and_b64 vcc, exec, s[10:11]
	.loc	1 10 5
	s_waitcnt vmcnt(1)
	ds_write_b128 v10, v[4:7]
	s_waitcnt vmcnt(0)
	ds_write_b128 v10, v[12:15] offset:8192
	s_waitcnt lgkmcnt(0)
	s_barrier
	.loc	1 8 5
	s_cbranch_vccnz .LBB0_2
	.loc	1 10 5
	s_barrier
.LBB0_2:
	.loc	1 8 5
	v_bfe_u32 v12, v0, 4, 2
	s_lshr_b32 s18, s19, 3
	s_lshr_b32 s19, s19, 2
	v_and_b32_e32 v11, 15, v0
	v_and_b32_e32 v0, 7, v0
	s_and_b32 s18, s18, 0x1fffffe0
	v_or_b32_e32 v3, 4, v12
	s_and_b32 s19, s19, 48
	v_or_b32_e32 v1, s18, v11
	v_xor_b32_e32 v2, v12, v0
	v_xor_b32_e32 v0, v3, v0
	v_or_b32_e32 v3, s19, v11
	s_lshl_b32 s6, s6, 1
	v_mov_b32_e32 v4, 0x2000
	v_lshlrev_b32_e32 v1, 7, v1
	v_lshlrev_b32_e32 v2, 4, v2
	v_lshl_or_b32 v3, v3, 7, v4
	v_lshlrev_b32_e32 v0, 4, v0
	v_or_b32_e32 v13, v1, v2
	v_or_b32_e32 v14, v3, v2
	v_or_b32_e32 v15, v1, v0
	v_or_b32_e32 v16, v3, v0
	v_mov_b32_e32 v0, 0
	v_mov_b32_e32 v1, 0
	v_mov_b32_e32 v2, 0
	v_mov_b32_e32 v3, 0
	v_mov_b32_e32 v4, 0
	v_mov_b32_e32 v5, 0
	v_mov_b32_e32 v6, 0
	v_mov_b32_e32 v7, 0
.LBB0_3:
	.loc	1 11 5
	ds_read_b128 v[18:21], v13
	ds_read_b128 v[22:25], v13 offset:2048
	ds_read_b128 v[26:29], v14
	.loc	1 8 5
	s_addk_i32 s17, 0x80
	.loc	1 9 5
	buffer_load_dwordx4 v[30:33], v8, s[0:3], s17 offen
	.loc	1 11 5
	ds_read_b128 v[34:37], v15
	ds_read_b128 v[38:41], v15 offset:2048
	ds_read_b128 v[42:45], v16
	.loc	1 9 5
	buffer_load_dwordx4 v[46:49], v9, s[12:15], s17 offen
	.loc	1 8 5
	s_waitcnt lgkmcnt(0)
	.loc	1 10 5
	s_barrier
	.loc	1 8 5
	s_setprio 1
	.loc	1 12 5
	v_mfma_f32_16x16x16_f16 v[4:7], v[26:27], v[18:19], v[4:7]
	v_mfma_f32_16x16x16_f16 v[0:3], v[26:27], v[22:23], v[0:3]
	v_mfma_f32_16x16x16_f16 v[4:7], v[28:29], v[20:21], v[4:7]
	v_mfma_f32_16x16x16_f16 v[0:3], v[28:29], v[24:25], v[0:3]
	.loc	1 8 5
	s_setprio 0
	.loc	1 10 5
	s_barrier
	s_waitcnt vmcnt(1)
	ds_write_b128 v10, v[30:33]
	s_waitcnt vmcnt(0)
	ds_write_b128 v10, v[46:49] offset:8192
	.loc	1 8 5
	s_waitcnt lgkmcnt(0)
	.loc	1 10 5
	s_barrier
	.loc	1 8 5
	s_setprio 1
	.loc	1 12 5
	v_mfma_f32_16x16x16_f16 v[4:7], v[42:43], v[34:35], v[4:7]
	v_mfma_f32_16x16x16_f16 v[0:3], v[42:43], v[38:39], v[0:3]
	v_mfma_f32_16x16x16_f16 v[4:7], v[44:45], v[36:37], v[4:7]
	v_mfma_f32_16x16x16_f16 v[0:3], v[44:45], v[40:41], v[0:3]
	.loc	1 8 5
	s_setprio 0
	.loc	1 10 5
	s_barrier
	.loc	1 8 5
	s_cmp_lt_u32 s17, s6
	s_cbranch_scc1 .LBB0_3
	s_andn2_b64 vcc, exec, s[10:11]
	s_cbranch_vccnz .LBB0_6
	.loc	1 10 5
	s_barrier
.LBB0_6:
	.loc	1 8 5
	s_add_i32 s18, s18, s16
	v_or_b32_e32 v8, s18, v11
	v_lshl_or_b32 v9, v12, 2, s7
	v_or_b32_e32 v9, s19, v9
	s_mul_i32 s0, s4, s5
	v_mul_lo_u32 v10, v8, s5
	s_and_b32 s9, s9, 0xffff
	s_lshl_b32 s10, s0, 2
	s_mov_b32 s11, 0x27000
	v_add_lshl_u32 v10, v10, v9, 2
	.loc	1 13 5
	buffer_store_dwordx4 v[4:7], v10, s[8:11], 0 offen
	.loc	1 8 5
	s_nop 1
	v_or_b32_e32 v4, 16, v8
	v_mul_lo_u32 v4, v4, s5
	v_add_lshl_u32 v4, v4, v9, 2
	.loc	1 13 5
	buffer_store_dwordx4 v[0:3], v4, s[8:11], 0 offen
	.loc	1 8 5
	s_endpgm
.Ltmp0:
	.section	.rodata,"a",@progbits
	.p2align	6, 0x0
	.amdhsa_kernel gemm
		.amdhsa_group_segment_fixed_size 16384
		.amdhsa_private_segment_fixed_size 0
		.amdhsa_kernarg_size 36
		.amdhsa_user_sgpr_count 2
		.amdhsa_user_sgpr_dispatch_ptr 0
		.amdhsa_user_sgpr_queue_ptr 0
		.amdhsa_user_sgpr_kernarg_segment_ptr 1
		.amdhsa_user_sgpr_dispatch_id 0
		.amdhsa_user_sgpr_kernarg_preload_length 0
		.amdhsa_user_sgpr_kernarg_preload_offset 0
		.amdhsa_user_sgpr_private_segment_size 0
		.amdhsa_uses_dynamic_stack 0
		.amdhsa_enable_private_segment 0
		.amdhsa_system_sgpr_workgroup_id_x 1
		.amdhsa_system_sgpr_workgroup_id_y 1
		.amdhsa_system_sgpr_workgroup_id_z 0
		.amdhsa_system_sgpr_workgroup_info 0
		.amdhsa_system_vgpr_workitem_id 0
		.amdhsa_next_free_vgpr 169
		.amdhsa_next_free_sgpr 96
		.amdhsa_accum_offset 52
		.amdhsa_reserve_vcc 1
		.amdhsa_reserve_xnack_mask 1
		.amdhsa_float_round_mode_32 0
		.amdhsa_float_round_mode_16_64 0
		.amdhsa_float_denorm_mode_32 3
		.amdhsa_float_denorm_mode_16_64 3
		.amdhsa_dx10_clamp 1
		.amdhsa_ieee_mode 1
		.amdhsa_fp16_overflow 0
		.amdhsa_tg_split 0
		.amdhsa_exception_fp_ieee_invalid_op 0
		.amdhsa_exception_fp_denorm_src 0
		.amdhsa_exception_fp_ieee_div_zero 0
		.amdhsa_exception_fp_ieee_overflow 0
		.amdhsa_exception_fp_ieee_underflow 0
		.amdhsa_exception_fp_ieee_inexact 0
		.amdhsa_exception_int_div_zero 0
	.end_amdhsa_kernel
	.text
.Lfunc_end0:
	.size	gemm, .Lfunc_end0-gemm
	.cfi_endproc

	.set gemm.num_vgpr, 50
	.set gemm.num_agpr, 0
	.set gemm.numbered_sgpr, 24
	.set gemm.num_named_barrier, 0
	.set gemm.private_seg_size, 0
	.set gemm.uses_vcc, 1
	.set gemm.uses_flat_scratch, 0
	.set gemm.has_dyn_sized_stack, 0
	.set gemm.has_recursion, 0
	.set gemm.has_indirect_call, 0
	.p2alignl 6, 3212836864
	.fill 256, 4, 3212836864
	.section	.AMDGPU.gpr_maximums,"",@progbits
	.set amdgpu.max_num_vgpr, 0
	.set amdgpu.max_num_agpr, 0
	.set amdgpu.max_num_sgpr, 0
	.set amdgpu.max_num_named_barrier, 0
	.text
	.section	.debug_abbrev,"",@progbits
	.byte	1
	.byte	17
	.byte	0
	.byte	37
	.byte	14
	.byte	19
	.byte	5
	.byte	3
	.byte	14
	.byte	16
	.byte	23
	.byte	27
	.byte	14
	.byte	17
	.byte	1
	.byte	18
	.byte	6
	.byte	0
	.byte	0
	.byte	0
	.section	.debug_info,"",@progbits
.Lcu_begin0:
	.long	.Ldebug_info_end0-.Ldebug_info_start0
.Ldebug_info_start0:
	.short	4
	.long	.debug_abbrev
	.byte	8
	.byte	1
	.long	.Linfo_string0
	.short	20
	.long	.Linfo_string1
	.long	.Lline_table_start0
	.long	.Linfo_string2
	.quad	.Lfunc_begin0
	.long	.Lfunc_end0-.Lfunc_begin0
.Ldebug_info_end0:
	.section	.debug_str,"MS",@progbits,1
.Linfo_string0:
	.asciz	"tilewave"
.Linfo_string1:
	.asciz	"gemm.py"
.Linfo_string2:
	.asciz	"."
	.section	".note.GNU-stack","",@progbits
	.amdgpu_metadata
---
amdhsa.kernels:
  - .agpr_count:     0
    .args:
      - .actual_access:  read_only
        .address_space:  global
        .name:           A
        .offset:         0
        .size:           8
        .value_kind:     global_buffer
      - .actual_access:  read_only
        .address_space:  global
        .name:           B
        .offset:         8
        .size:           8
        .value_kind:     global_buffer
      - .actual_access:  write_only
        .address_space:  global
        .name:           C
        .offset:         16
        .size:           8
        .value_kind:     global_buffer
      - .name:           M
        .offset:         24
        .size:           4
        .value_kind:     by_value
      - .name:           N
        .offset:         28
        .size:           4
        .value_kind:     by_value
      - .name:           K
        .offset:         32
        .size:           4
        .value_kind:     by_value
    .group_segment_fixed_size: 16384
    .kernarg_segment_align: 8
    .kernarg_segment_size: 36
    .max_flat_workgroup_size: 512
    .name:           gemm
    .private_segment_fixed_size: 0
    .sgpr_count:     30
    .sgpr_spill_count: 0
    .symbol:         gemm.kd
    .uniform_work_group_size: 1
    .uses_dynamic_stack: false
    .vgpr_count:     50
    .vgpr_spill_count: 0
    .wavefront_size: 64
amdhsa.target:   amdgcn-amd-amdhsa--gfx942
amdhsa.version:
  - 1
  - 2
...

	.end_amdgpu_metadata
	.section	.debug_line,"",@progbits
.Lline_table_start0:
